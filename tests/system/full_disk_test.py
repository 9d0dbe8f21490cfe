"""Tokens and certificates that are made on a full disk: a clear line, and what was there stays whole."""

import subprocess
import tempfile
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths
from rig.small_disk import SmallDisk, possible

FULL = "(No space left on device); free space on that disk, then try again"


@unittest.skipUnless(possible(), "this machine lets nobody mount a tmpfs")
class FullDisk(SystemTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.disk = SmallDisk(Path(folder.name), "64k")
        self.addCleanup(self.disk.close)

    def fargpu(self, *arguments):
        return self.disk.run(paths.FARGPU, *arguments)

    def contents(self):
        return {path.name: path.read_bytes() for path in self.disk.seen.rglob("*")
                if path.is_file() and path.name not in ("filler", "tokens.lock")}

    def token(self, verb, *more):
        return self.fargpu("token", verb, "--file", self.disk.path / "tokens", *more)

    def assert_refused_and_nothing_changed(self, command, file):
        before = self.contents()
        done = command()
        self.assertEqual((done.code, done.err), (125, f"fargpu: cannot write {self.disk.path / file} {FULL}\n"))
        self.assertEqual(self.contents(), before)

    def test_tokens(self):
        self.assertEqual(self.token("create", "--tenant", "lab", "--name", "first").code, 0)
        self.disk.fill()
        self.assert_refused_and_nothing_changed(lambda: self.token("create", "--tenant", "lab", "--name", "second"),
                                                "tokens")
        self.assert_refused_and_nothing_changed(lambda: self.token("revoke", "first"), "tokens")
        self.disk.empty()
        self.assertEqual(self.token("create", "--tenant", "lab", "--name", "second").code, 0)
        listed = self.token("list").out
        self.assertIn("first", listed)
        self.assertIn("second", listed)

    def test_certificates(self):
        """A pair is a key and a certificate, and each may be the one that finds no room."""
        init = ("pki", "init", "--folder", self.disk.path)
        issue = ("pki", "issue", "--folder", self.disk.path, "--tenant", "lab")
        for command, name in (init, "ca"), (issue, "lab"):
            for free, ending in (0, ".key"), (4096, ".crt"):
                with self.subTest(command, free=free):
                    self.disk.fill(but=free)
                    self.assert_refused_and_nothing_changed(lambda: self.fargpu(*command), name + ending)
            self.disk.empty()
            self.assertEqual(self.fargpu(*command).code, 0)


class FullOutput(SystemTest):
    def test_a_token_that_cannot_be_shown_is_not_made(self):
        with tempfile.TemporaryDirectory() as folder:
            tokens = Path(folder, "tokens")
            create = ("token", "create", "--tenant", "lab", "--file", str(tokens), "--name")
            self.assertEqual(fargpu(*create, "first").code, 0)
            before = tokens.read_bytes()
            with open("/dev/full", "wb") as full:
                done = subprocess.run([paths.FARGPU, *create, "second"], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 125)
            self.assertIn("the token cannot be written where the output goes, and was not made; free space there",
                          done.stderr)
            self.assertEqual(tokens.read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
