"""Steps on demand. A program's words are names of workloads, `-` for none, and it answers line by line:

  steps count=N of=I     of the I-th workload a step that is not measured, since after a pause all is slower, and N that
                         are, to their end; the answer has how many were made, and the seconds of a measured one
  values count=N of=I    the first N values that its steps computed, to compare two runs by

Answers are lines of JSON, {"error": ...} if something went wrong. The first answer comes by itself, when all is ready,
and says of each workload how many calls, tokens, replays or reads a step has, and how many bytes it carries to the
device and from it."""

import dataclasses
import json
import sys
import time
import traceback
import typing


@dataclasses.dataclass
class Workload:
    step: typing.Callable  # gives a value
    calls: int = 1
    up: int = 0
    down: int = 0
    warm: int = 1  # steps of a turn that are not measured; 0 where they are long
    values: list = dataclasses.field(default_factory=list)


def answer(found):
    print(json.dumps(found), flush=True)


def steps(workload, count, finish):
    for _ in range(workload.warm):
        workload.values.append(workload.step())
    finish()
    cpu, begin, single = time.process_time(), time.perf_counter(), []
    for _ in range(count):
        start = time.perf_counter()
        workload.values.append(workload.step())
        single.append(time.perf_counter() - start)
    finish()
    seconds = time.perf_counter() - begin
    single.sort()
    return {"made": count + workload.warm, "seconds": seconds / count, "step": single[count // 2],
            "step_p99": single[count * 99 // 100],
            "cpu": (time.process_time() - cpu) / count}


def wrong(error):
    traceback.print_exc()
    return {"error": f"{type(error).__name__}: {error}"[:300].replace("\n", " ")}


def ready(build, finish):
    """A workload that has warmed up, and what is said of it. `build` makes it, or the function of one that has nothing
    to tell."""
    made = build()
    workload = made if isinstance(made, Workload) else Workload(made)
    steps(workload, 1 + workload.warm, finish)
    return workload, {"calls": workload.calls, "up": workload.up, "down": workload.down, "warm": workload.warm}


def serve(builders, names, finish):
    """Answers until stdin ends. `finish` waits for all that was given to the device. A workload that does not begin
    leaves the others."""
    workloads, about = [], []
    for name in names:
        try:
            workload, said = ready(builders[name], finish) if name != "-" else (None, {})
        except Exception as error:  # noqa: BLE001
            if len(names) == 1:
                raise
            workload, said = None, wrong(error)
        workloads.append(workload)
        about.append(said)
    answer({"ready": 1, "cases": about})
    for line in sys.stdin:
        case, *words = line.split()
        asked = {key: int(value) for key, _, value in (word.partition("=") for word in words)}
        workload = workloads[asked.get("of", 0)]
        if case == "steps":
            answer(steps(workload, asked["count"], finish))
        elif case == "values":
            answer({"values": [float(value) for value in workload.values[:asked["count"]]]})
        else:
            answer({"error": f"there is no case '{case}'"})


def main(builders, finish):
    """Serves the workloads that the command line names. Whatever goes wrong is the answer."""
    try:
        serve(builders, sys.argv[1:], finish)
    except Exception as error:  # noqa: BLE001
        answer(wrong(error))
