"""The spec of this repository, with the toolkit that the build uses."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from rig import BUILD, SOURCE


def generated(hash_seed):
    """Everything that a run of its own makes: name and contents."""
    toolkit = os.environ.get("FARGPU_TOOLKIT", "/usr/local/cuda/include")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([SOURCE / "codegen" / "generate", "--include", toolkit, "--out", folder], check=True,
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
        differing = [name for name, text in self.files.items() if (folder / name).read_bytes() != text]
        self.assertEqual(differing, [], "build again")

    def test_committed_coverage(self):
        self.assertMultiLineEqual((SOURCE / "codegen" / "coverage.md").read_text(), (BUILD / "generated" / "coverage.md").read_text(),
                                  "if the change is right, copy generated/coverage.md of the build folder to codegen/")

    def test_numbers_in_the_readme(self):
        counts = dict(re.findall(r"^\| (\w+) \| (\d+) \|$", (SOURCE / "codegen" / "coverage.md").read_text(), re.M))
        served = sum(int(counts[how]) for how in ("generated", "local", "special"))
        readme = " ".join((SOURCE / "README.md").read_text().split())
        self.assertIn(f"Of the {counts['all']} symbols of the CUDA 13.0 driver API, {served} are served", readme)


if __name__ == "__main__":
    unittest.main()
