"""What a program computed, in a form that two runs can be compared by: exact fingerprints and, for people,
magnitudes."""

import hashlib
import json
import sys
import time
import traceback


class Results:
    """Collects results by name; failures too. Written as JSON to the path given as the program's first argument."""

    def __init__(self):
        self.entries = {}
        self.started = time.time()

    def add(self, name, values):
        """`values`: anything numpy can make an array of."""
        import numpy

        array = numpy.ascontiguousarray(values)
        entry = {"sha": hashlib.sha256(array.tobytes()).hexdigest()[:16], "shape": list(array.shape),
                 "dtype": str(array.dtype)}
        if array.dtype.kind in "fiub":
            wide = array.astype("float64")
            entry["sum"] = float(wide.sum())
            entry["max"] = float(abs(wide).max()) if wide.size else 0.0
        self.entries[name] = entry

    def run(self, name, function):
        """Runs one case; its value, or the exception, is the result."""
        begin = time.time()
        try:
            self.add(name, function())
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is the result
            traceback.print_exc()
            self.entries[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        self.entries[name]["seconds"] = round(time.time() - begin, 2)
        print(f"{name}: {self.entries[name]}", flush=True)
        self.write()  # so that what a later case breaks is not lost

    def write(self):
        with open(sys.argv[1], "w") as file:
            json.dump({"entries": self.entries, "seconds": time.time() - self.started}, file)
