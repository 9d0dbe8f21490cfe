"""`fargpu` finds its library wherever the two were put, and says where it looked."""

import os
import shutil
import tempfile
import unittest
from pathlib import Path

from rig import paths
from rig.process import run


class InstalledPlaces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.prefix = Path(folder.name, "prefix")

    def put(self, *library_folders):
        """The command in bin, and the library in each of the folders below the prefix."""
        fargpu = self.prefix / "bin" / "fargpu"
        fargpu.parent.mkdir(parents=True, exist_ok=True)
        if not fargpu.exists():
            shutil.copy(paths.BUILD / "bin" / "fargpu", fargpu)
        for folder in library_folders:
            (self.prefix / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(paths.BUILD / "lib" / "libcuda.so.1", self.prefix / folder / "libcuda.so.1")
        return fargpu

    def loaders_path(self, fargpu):
        done = run([fargpu, "run", "--no-check", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"],
                   env={"FARGPU_POOL": "127.0.0.1:1"})
        self.assertEqual(done.code, 0, done.err)
        return done.out.strip()

    def test_each_place(self):
        for folder in ("bin", "lib/fargpu", "lib64/fargpu", "lib/x86_64-linux-gnu/fargpu"):
            with self.subTest(folder):
                fargpu = self.put(folder)
                self.assertEqual(self.loaders_path(fargpu), str(self.prefix / folder))
                shutil.rmtree(self.prefix)

    def test_a_link_to_the_command(self):
        fargpu = self.put("lib/fargpu")
        link = self.prefix / "elsewhere"
        os.symlink(fargpu, link)
        self.assertEqual(self.loaders_path(link), str(self.prefix / "lib" / "fargpu"))

    def test_another_librarys_folder_does_not_count(self):
        """PREFIX/lib may hold the library of a driver."""
        done = run([self.put("lib"), "run", "--no-check", "--", "true"], env={"FARGPU_POOL": "127.0.0.1:1"})
        self.assertEqual(done.code, 125)

    def test_nowhere(self):
        fargpu = self.put()
        done = run([fargpu, "run", "--no-check", "--", "true"], env={"FARGPU_POOL": "127.0.0.1:1"})
        self.assertEqual(done.code, 125)
        self.assertIn("the client library (libcuda.so.1) is in none of these folders: ", done.err)
        for folder in ("bin", "lib/fargpu", "lib64/fargpu"):
            self.assertIn(str(self.prefix / folder), done.err)
        self.assertIn("install the package fargpu-client", done.err)
        self.assertEqual(done.err.count("\n"), 1)
        found = run([fargpu, "doctor"], env={"FARGPU_POOL": "127.0.0.1:1"})
        self.assertIn("is in none of these folders: ", found.out)


if __name__ == "__main__":
    unittest.main()
