"""fargpu answers as what is behind it, the software GPU, or as NVIDIA's driver, whose answers are kept in driver/. What
else it answers stands in differences.toml."""

import os
import sys
import tempfile
import unittest
from pathlib import Path

import compare

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))

from rig import SystemTest, paths  # noqa: E402
from rig.process import run  # noqa: E402

DIRECT = paths.BUILD / "tests" / "softgpu" / "libcuda"
PROGRAMS = paths.BUILD / "tests" / "answers"
ALL = os.environ.get("FARGPU_ANSWERS") == "all"
SAMPLE = "1" if ALL else "8"
SECONDS = 1500
# The software GPU has fewer multiprocessors than a real one, less memory in each, and other limits.
OF_THE_DEVICE = ("numbers of occupancy", "numbers of functions", "numbers of limits")
# Its pools keep nothing.
OF_THE_DRIVER = ("numbers of the default pool", "numbers of a pool")


def kept(program):
    """What NVIDIA's drivers answered."""
    return [compare.read(path)[1] for path in sorted((HERE / "driver").glob(f"{program}.*.txt"))]


class Answers(SystemTest):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.through = {"LD_LIBRARY_PATH": paths.LIBRARIES, "FARGPU_POOL": self.broker(driver=paths.SOFTWARE_GPU).pool}
        self.direct = {"LD_LIBRARY_PATH": DIRECT}

    def answers(self, program, environment, *options):
        """What a program wrote."""
        target = self.folder / "answers.txt"
        done = run([PROGRAMS / program, "--out", target, *options], env=environment, seconds=SECONDS)
        self.assertEqual(done.code, 0, done.err[-2000:])
        return compare.read(target)[1]

    def assert_right(self, right, answers):
        comparison = compare.Comparison(right, answers)
        self.assertFalse(comparison.different, "\n".join(comparison.lines()))

    def test_calls(self):
        sample = ("--sample", SAMPLE)
        direct = self.answers("answers", self.direct, *sample)
        self.assertGreater(len(direct), 10000 // int(SAMPLE))
        self.assert_right([*kept("answers"), direct], self.answers("answers", self.through, *sample, "--undefined"))

    def test_numbers(self):
        direct, through = (self.answers("numbers", environment) for environment in (self.direct, self.through))
        self.assertGreater(len(direct), 400)
        self.assert_right([direct], {name: answer for name, answer in through.items() if name[0] not in OF_THE_DRIVER})
        for driver in kept("numbers"):
            comparison = compare.Comparison([driver], through)
            self.assertGreater(comparison.equal, 250)
            self.assertEqual([row for row in comparison.different if row[0] not in OF_THE_DEVICE], [])


if __name__ == "__main__":
    unittest.main()
