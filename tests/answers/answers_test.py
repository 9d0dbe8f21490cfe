"""fargpu answers as what is behind it: the software GPU directly and through fargpu, case by case; and as NVIDIA's
driver, whose answers are kept in driver/."""

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
SAMPLE = "1" if ALL else "20"
SECONDS = 1500


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

    def assert_same(self, first, second, pair):
        comparison = compare.Comparison(first, second, pair)
        self.assertFalse(comparison.different, "\n".join(comparison.lines()))
        if ALL:
            self.assertEqual([row["why"] for row in comparison.explained.unused()], [], "differs no more")

    def test_calls(self):
        sample = ("--sample", SAMPLE)
        direct = self.answers("answers", self.direct, *sample)
        remote = self.answers("answers", self.through, *sample, "--undefined")
        self.assertGreater(len(direct), 10000 // int(SAMPLE))
        self.assert_same(direct, remote, "fargpu")

    def test_numbers(self):
        direct, remote = (self.answers("numbers", environment) for environment in (self.direct, self.through))
        self.assertGreater(len(direct), 400)
        self.assert_same(direct, remote, "fargpu")


if __name__ == "__main__":
    unittest.main()
