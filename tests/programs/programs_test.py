"""The programs of this folder, each through client library, broker and worker, on the software GPU."""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))

from rig import Broker, paths  # noqa: E402
from rig.process import run  # noqa: E402

PROGRAMS = sorted(source.stem for source in HERE.glob("*.cu"))
SECONDS = 120  # of each


class Programs(unittest.TestCase):
    """By one transport; they share a broker."""

    transport = None

    @classmethod
    def setUpClass(cls):
        cls.broker = Broker(driver=paths.SOFTWARE_GPU)
        cls.addClassCleanup(cls.broker.close)

    def run_program(self, name):
        # With bulk lanes, of which a machine with few processors has none.
        env = {"FARGPU_POOL": self.broker.pool, "LD_LIBRARY_PATH": paths.LIBRARIES, "FARGPU_LANES": "4",
               "FARGPU_TRANSPORT": self.transport}
        done = run([paths.BUILD / "tests" / "programs" / name], seconds=SECONDS, env=env)
        self.assertEqual(done.code, 0, done.out + done.err)
        self.assertIn("PASSED", done.out.splitlines())


def class_of(transport):
    def method(name):
        return lambda self: self.run_program(name)

    return type(transport, (Programs,), {"transport": transport, **{f"test_{name}": method(name) for name in PROGRAMS}})


tcp, shm = class_of("tcp"), class_of("shm")
del Programs  # it has none of its own
