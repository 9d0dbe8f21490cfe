"""The spec of this repository, with the toolkit that the build uses."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from rig import BUILD, SOURCE


COVERAGE = SOURCE / "docs" / "reference" / "coverage.md"


def generated(hash_seed):
    """Everything that a run of its own makes: name and contents."""
    toolkit = os.environ.get("FARGPU_TOOLKIT", "/usr/local/cuda/include")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([SOURCE / "codegen" / "generate", "--include", toolkit, "--out", folder, "--tests",
                        SOURCE / "tests"], check=True,
                       env={**os.environ, "PYTHONHASHSEED": str(hash_seed)})
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


class Repository(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = generated(hash_seed=0)

    def test_same_input_same_bytes(self):
        """Even where Python walks its sets in another order."""
        for seed in (0, 1):
            again = generated(seed)
            self.assertEqual(self.files.keys(), again.keys())
            self.assertEqual([name for name in again if self.files[name] != again[name]], [], f"PYTHONHASHSEED={seed}")

    def test_the_build_has_what_the_spec_says(self):
        folder = BUILD / "generated"
        differing = [name for name, text in self.files.items() if name != COVERAGE.name
                     and (folder / name).read_bytes() != text]
        self.assertEqual(differing, [], "build again")

    def test_committed_coverage(self):
        self.assertMultiLineEqual(COVERAGE.read_text(), self.files[COVERAGE.name].decode(),
                                  "if the change is right: python3 tests/codegen/repository_test.py --renew")

    def test_what_is_served_is_tested(self):
        rows = re.findall(r"^\| `(\w+)` \| [^|]* \| (\w+) \|.*\| ([^|]*) \|$", COVERAGE.read_text(), re.M)
        self.assertGreater(len(rows), 400)
        self.assertEqual([name for name, how, tests in rows if how != "refused" and not tests.strip()], [])

    def test_numbers_in_the_readme(self):
        counts = dict(re.findall(r"^\| (\w+) \| (\d+) \|$", COVERAGE.read_text(), re.M))
        served = sum(int(counts[how]) for how in ("generated", "local", "special"))
        readme = " ".join((SOURCE / "README.md").read_text().split())
        self.assertIn(f"Of the {counts['all']} symbols of the CUDA 13.0 driver API, {served} are served", readme)


if __name__ == "__main__":
    if "--renew" in sys.argv:
        sys.exit(COVERAGE.write_bytes(generated(hash_seed=0)[COVERAGE.name]) == 0)
    unittest.main()
