"""Parts of two releases in one installation, and parts that a full disk left: a line says which file it is, and what
to do. The other release is the present one under another number."""

import os
import tempfile
import unittest
from pathlib import Path

from rig import SystemTest, paths
from rig.process import run

OTHER = "0.0.9"
REPAIR = "install the package fargpu-client again"


class HalfUpgraded(SystemTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.prefix = Path(folder.name)
        self.release = run([paths.FARGPU, "--version"]).out.split()[1]
        self.assertEqual(len(self.release), len(OTHER))

    def put(self, source, target, change=lambda contents: contents):
        path = self.prefix / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(change(source.read_bytes()))
        path.chmod(0o755)
        return path

    def put_client(self, **changes):
        self.put(paths.FARGPU, "bin/fargpu")
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            self.put(paths.LIBRARIES / name, f"lib/fargpu/{name}",
                     changes.get(name.split(".")[0].replace("-", "_"), lambda same: same))

    def note(self, release):
        return b"fargpu\0\0" + release.encode() + b"\0"

    def of_another_release(self, contents):
        self.assertEqual(contents.count(self.note(self.release)), 1)
        return contents.replace(self.note(self.release), self.note(OTHER))

    def without_release(self, contents):
        return contents.replace(self.note(self.release), self.note(self.release).upper())

    def assert_told(self, text):
        environment = {"FARGPU_POOL": "127.0.0.1:1"}
        done = run([self.prefix / "bin" / "fargpu", "run", "--no-check", "--", "true"], env=environment)
        self.assertEqual((done.code, done.out), (125, ""))
        self.assertEqual(done.err, f"fargpu: {text}; {REPAIR}, or `fargpu` and both libraries from one build\n")
        found = run([self.prefix / "bin" / "fargpu", "doctor"], env=environment)
        self.assertEqual(found.code, 1)
        self.assertIn(f"FAIL  {text}", found.out)
        self.assertIn(REPAIR, found.out)

    def test_whole(self):
        self.put_client()
        done = run([self.prefix / "bin" / "fargpu", "run", "--no-check", "--", "true"],
                   env={"FARGPU_POOL": "127.0.0.1:1"})
        self.assertEqual((done.code, done.err), (0, ""))

    def test_library_of_another_release(self):
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            with self.subTest(name):
                self.put_client(**{name.split(".")[0].replace("-", "_"): self.of_another_release})
                self.assert_told(f"{self.prefix}/lib/fargpu/{name} is of fargpu {OTHER}, and this command of "
                                 f"fargpu {self.release}")

    def test_library_that_tells_no_release(self):
        self.put_client(libcuda=self.without_release)
        self.assert_told(f"{self.prefix}/lib/fargpu/libcuda.so.1 is of fargpu before 0.2.0, or not of fargpu, and "
                         f"this command of fargpu {self.release}")

    def test_library_that_is_not_whole(self):
        for part in (0, 1, 40):  # in percent
            with self.subTest(part=part):
                self.put_client(libcuda=lambda contents: contents[:len(contents) * part // 100])
                self.assert_told(f"{self.prefix}/lib/fargpu/libcuda.so.1 cannot be used: it ends too early; "
                                 "perhaps the disk was full when it was written")

    def test_file_that_is_no_library(self):
        self.put_client(libcuda=lambda contents: b"#!/bin/sh\n" * 100)
        self.assert_told(f"{self.prefix}/lib/fargpu/libcuda.so.1 cannot be used: it is no library")

    def test_worker_of_another_release(self):
        fargpud = self.put(paths.FARGPUD, "bin/fargpud")
        worker = self.put(paths.BUILD / "bin" / "fargpu-worker", "libexec/fargpu/fargpu-worker",
                          lambda contents: contents.replace(self.release.encode() + b"\0", OTHER.encode() + b"\0"))
        host = self.start([fargpud, "--driver", paths.FAKE_DRIVER, "--listen", "127.0.0.1:0",
                           "--config", os.devnull, "--image-folder", ""])
        line = (f"{worker} is of fargpu {OTHER}, fargpud of {self.release}; if the package was upgraded, restart "
                "fargpud, whose sessions go on; else install both from the same package")
        host.err.find(lambda said: line in said)

    def test_worker_that_does_not_know_what_it_is_told(self):
        """One that is too old to say of which release it is ends so, with what its library has for an exit code."""
        worker = self.prefix / "worker"
        real = paths.BUILD / "bin" / "fargpu-worker"
        worker.write_text(f'#!/bin/sh\nexec {real} "$@" --an-option-of-another-release\n')
        worker.chmod(0o755)
        host = self.start([paths.FARGPUD, "--driver", paths.FAKE_DRIVER, "--listen", "127.0.0.1:0", "--config",
                           os.devnull, "--image-folder", "", "--worker", worker])
        line = (f"{worker} knows fewer options than fargpud {self.release} gives it, so it is of an older release; "
                "install both from the same package")
        host.err.find(lambda said: line in said)


if __name__ == "__main__":
    unittest.main()
