"""What the generator's tests stand on: a toolkit in small and its spec (toolkit/, spec/), of which each test may change
a copy."""

import contextlib
import io
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
BUILD = Path(os.environ.get("FARGPU_BUILD", SOURCE / "build"))
sys.path.insert(0, str(SOURCE / "codegen"))

from fargpu_codegen.__main__ import main  # noqa: E402  (the line above says where it lies)


class GeneratorTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.restore()

    def restore(self):
        """Takes all changes back."""
        for name in ("toolkit", "spec"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(HERE / name, self.folder / name)

    def change(self, file, old, new):
        """Replaces a piece of text that stands in a file once."""
        path = self.folder / file
        text = path.read_text()
        self.assertEqual(text.count(old), 1, f"{file} should have this once: {old}")
        path.write_text(text.replace(old, new))

    def add(self, file, text):
        with open(self.folder / file, "a", encoding="utf-8") as out:
            out.write(text)

    def text(self, file):
        return (self.folder / file).read_text()

    def run_generator(self, command, *options):
        """(exit code, stdout, stderr)"""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([command, "--include", str(self.folder / "toolkit"), "--spec", str(self.folder / "spec"),
                         *options])
        return code, out.getvalue(), err.getvalue()

    def generate(self):
        return self.run_generator("generate", "--out", str(self.folder / "out"))

    def register(self, *options):
        return self.run_generator("register", *options)

    def assert_accepted(self):
        self.assertEqual(self.generate(), (0, "", ""))

    def assert_stops(self, *complaints):
        """The generator stops with exactly these lines, and has written nothing."""
        code, out, err = self.generate()
        self.assertEqual(err.splitlines(), ["fargpu codegen stopped:", *complaints])
        self.assertEqual((code, out), (1, ""))
        self.assertFalse((self.folder / "out").exists())
