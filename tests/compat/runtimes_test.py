"""Programs of older toolkits on the software GPU, through client, broker and worker: one program, CUDA runtimes of
several versions.

The runtimes come from Debian's archive (non-free) and are kept below the build folder. Where they cannot be had, the
test says so and counts as skipped."""

import hashlib
import os
import subprocess
import sys
import unittest
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))

from rig import SystemTest, paths  # noqa: E402
from rig.process import run  # noqa: E402

ARCHIVE = os.environ.get("FARGPU_DEBIAN_ARCHIVE", "http://deb.debian.org/debian")
KEPT = paths.BUILD / "tests" / "compat" / "runtimes"
PROGRAM = paths.BUILD / "tests" / "compat" / "runtime"
KERNELS = paths.BUILD / "tests" / "compat" / "kernels.fatbin"
SKIPPED = 77  # ctest's SKIP_RETURN_CODE

# By version: package, its SHA-256, and the library in it.
PACKAGES = {
    "11.8": ("pool/non-free/n/nvidia-cuda-toolkit/libcudart11.0_11.8.89~11.8.0-5~deb12u1_amd64.deb",
             "6c0e4052f5cb7ffcd70989110ed51af7c506ff7dc60d49900ae316ac9abaee29", "libcudart.so.11.0"),
    "12.4": ("pool/non-free/n/nvidia-cuda-toolkit/libcudart12_12.4.127~12.4.1-2_amd64.deb",
             "361b3721cf84bf068e111ff013c819de61cb475268b0d38db99839471f1b4130", "libcudart.so.12"),
}


def fetch(version):
    """The folder with a version's runtime. Raises OSError where it cannot be had."""
    path, digest, library = PACKAGES[version]
    folder = KEPT / version
    target = folder / "usr" / "lib" / "x86_64-linux-gnu"
    if (target / library).exists():
        return target / library
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / "package.deb"
    with urllib.request.urlopen(f"{ARCHIVE}/{path}", timeout=60) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise OSError(f"{ARCHIVE}/{path} is not the package it should be")
    package.write_bytes(content)
    subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return target / library


class Runtimes(SystemTest):
    def try_runtime(self, library, version):
        broker = self.broker(driver=paths.SOFTWARE_GPU)
        done = run([PROGRAM, library, KERNELS], env={"FARGPU_POOL": broker.pool, "LD_LIBRARY_PATH": paths.LIBRARIES},
                   seconds=120)
        said = done.out + done.err
        self.assertEqual(done.code, 0, said)
        self.assertIn(f"runtime {version}", said)
        self.assertIn("PASSED", said)
        self.assertNotIn("refused", said)

    def test_of_this_toolkit(self):
        library = Path("/usr/local/cuda/lib64/libcudart.so.13")
        self.try_runtime(library if library.exists() else "libcudart.so.13", 13000)

    def test_11_8(self):
        self.try_runtime(fetched("11.8"), 11080)

    def test_12_4(self):
        self.try_runtime(fetched("12.4"), 12040)


def fetched(version):
    try:
        return fetch(version)
    except OSError as error:
        raise unittest.SkipTest(f"SKIPPED: the CUDA runtime {version} cannot be fetched: {error}") from error


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    for test, why in result.skipped:
        print(f"\n*** {test}: {why}\n", file=sys.stderr)
    sys.exit(1 if not result.wasSuccessful() else SKIPPED if result.skipped else 0)
