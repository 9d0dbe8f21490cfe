"""The built binaries as the loader and strangers' programs see them."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from elf import Library

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FARGPU_BUILD", SOURCE / "build"))
TOOLKIT = os.environ.get("FARGPU_TOOLKIT", "/usr/local/cuda/include")
COMPILER = os.environ.get("FARGPU_CXX", "c++")

# The oldest glibc of each side; the environment has what the build was told.
CLIENT_GLIBC = tuple(map(int, os.environ.get("FARGPU_CLIENT_GLIBC", "2.28").split(".")))
SERVER_GLIBC = tuple(map(int, os.environ.get("FARGPU_SERVER_GLIBC", "2.34").split(".")))
# What glibc has been divided into; since 2.34 the first of them has what is in the next two.
GLIBC_PARTS = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libm.so.6", "ld-linux-x86-64.so.2"}
# What glibc before 2.34 had in libraries that are not needed: librt, libutil, libresolv, libanl.
ELSEWHERE = (
    re.compile(r"(shm|timer|aio|mq|lio|res|ns)_\w+|(open|fork)pty|login_tty|getaddrinfo_a|gai_(error|suspend|cancel)"))
# Of the room that glibc keeps for libraries loaded later, which all of them share, 1664 bytes in the floor's glibc.
STATIC_TLS_MAX = 256


def prototypes():
    """The functions of the toolkit's headers, as the C preprocessor shows them: the generator has no part in this."""
    source = "".join(f"#include <{name}.h>\n" for name in ("cuda", "cudaProfiler", "cudaGL", "cudaEGL", "cudaVDPAU"))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("GL/gl.h", "EGL/egl.h", "EGL/eglext.h"):  # of other packages; their types do not matter here
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.touch()
        text = subprocess.run([COMPILER, "-E", "-P", "-x", "c", "-D__CUDA_API_VERSION_INTERNAL", "-I", folder,
                               "-I", TOOLKIT, "-"], input=source, check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", text))


def nvml_functions():
    """nvmlErrorString alone answers with text and therefore stands not in the list of those that answer with an
    error."""
    return {"nvmlErrorString"} | set(re.findall(r"^FARGPU_NVML(?:_CHANGE)?\((\w+)\)",
                                                (SOURCE / "client" / "nvml" / "functions.def").read_text(), re.M))


class Floor:
    """What lets a binary run with an old glibc and no other library; subclasses say with which glibc."""

    def test_needs_nothing_but_glibc(self):
        self.assertLessEqual(set(self.library.names("NEEDED")), GLIBC_PARTS)

    def test_glibc_floor(self):
        self.assertTrue(self.library.needed_versions)
        for version in self.library.needed_versions:
            with self.subTest(version):
                match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
                self.assertTrue(match, "no version of glibc's functions")
                self.assertLessEqual((int(match[1]), int(match[2])), self.glibc)

    def test_functions_are_where_an_old_glibc_has_them(self):
        """Its threads and its dlopen are libraries of their own, which must be needed; its other libraries are not."""
        if self.glibc < (2, 34):
            self.assertLessEqual({"libpthread.so.0", "libdl.so.2"}, set(self.library.names("NEEDED")))
            self.assertEqual([s.name for s in self.library.imported if ELSEWHERE.fullmatch(s.name)], [])


class Command(Floor, unittest.TestCase):
    glibc = CLIENT_GLIBC

    @classmethod
    def setUpClass(cls):
        cls.library = Library(BUILD / "bin" / "fargpu")


class Broker(Floor, unittest.TestCase):
    glibc = SERVER_GLIBC

    @classmethod
    def setUpClass(cls):
        cls.library = Library(BUILD / "bin" / "fargpud")


class Worker(Floor, unittest.TestCase):
    glibc = SERVER_GLIBC

    @classmethod
    def setUpClass(cls):
        cls.library = Library(BUILD / "bin" / "fargpu-worker")


class SoftwareGpu(Floor, unittest.TestCase):
    glibc = SERVER_GLIBC

    @classmethod
    def setUpClass(cls):
        cls.library = Library(BUILD / "server" / "softgpu" / "libfargpu-softgpu.so")


class Rules(Floor):
    """What holds for both client libraries; subclasses say for which, and what it exports."""

    maxDiff = None
    glibc = CLIENT_GLIBC

    @classmethod
    def setUpClass(cls):
        cls.path = BUILD / "lib" / cls.soname
        cls.library = Library(cls.path)

    def test_name(self):
        self.assertEqual(self.library.names("SONAME"), [self.soname])

    def test_exports_are_the_listed_functions(self):
        names = [s.name for s in self.library.exported]
        self.assertEqual(sorted(names), sorted(self.functions()))

    def test_exports_are_plain_functions(self):
        """Without version, as the driver's are; nothing unique, which the loader would make one with another
        library's."""
        for symbol in self.library.exported:
            with self.subTest(symbol.name):
                self.assertEqual((symbol.type, symbol.visibility, symbol.version), ("FUNC", "DEFAULT", ""))
                self.assertIn(symbol.bind, ("GLOBAL", "WEAK"))
        self.assertFalse(self.library.defined_versions)

    def test_imports_are_libc_s(self):
        """What is not libc's would be found in the program by luck. Only weak names of the compiler's own may be
        absent; it calls none."""
        for symbol in self.library.imported:
            with self.subTest(symbol.name):
                if symbol.bind == "WEAK" and not symbol.version:
                    self.assertRegex(symbol.name, r"^(_ITM_\w+|__gmon_start__|__cxa_pure_virtual)$")
                else:
                    self.assertTrue(symbol.version.startswith("GLIBC_"))

    def test_no_memory_is_both_written_and_executed(self):
        self.assertEqual(self.library.segments["GNU_STACK"][1], "RW")
        self.assertNotIn("TEXTREL", self.library.dynamic)
        self.assertIn("GNU_RELRO", self.library.segments)
        for kind, (_, flags) in self.library.segments.items():
            self.assertFalse({"W", "E"} <= set(flags), kind)

    def test_names_no_folder(self):
        self.assertEqual(self.library.names("RPATH") + self.library.names("RUNPATH"), [])

    def test_is_never_unloaded(self):
        self.assertIn("NODELETE", self.library.dynamic["FLAGS_1"][0])

    def test_thread_local_memory_is_small(self):
        if "TLS" in self.library.segments and "STATIC_TLS" in " ".join(self.library.dynamic["FLAGS"]):
            self.assertLessEqual(self.library.segments["TLS"][0], STATIC_TLS_MAX)

    def test_loads(self):
        """In a process of its own, lazily, at once, and when the environment demands all at once: every function is
        there by name, and it has brought no library but glibc's, no thread and no word."""
        program = """
import ctypes, os, sys
path, mode = sys.argv[1], getattr(os, sys.argv[2])
names = sys.stdin.read().split()
def libraries():
    with open("/proc/self/maps") as maps:
        return {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
before = libraries()
library = ctypes.CDLL(path, mode=mode)
addresses = {ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names}
assert None not in addresses and len(addresses) == len(names), "functions share an address"
new = {one for one in libraries() - before if not os.path.basename(one) in ("libpthread.so.0", "libdl.so.2")}
assert new == {os.path.realpath(path)}, new
assert len(os.listdir("/proc/self/task")) == 1, "threads"
"""
        for mode in ("RTLD_LAZY", "RTLD_NOW"):
            for environment in ({}, {"LD_BIND_NOW": "1"}):
                with self.subTest(mode=mode, environment=environment):
                    done = subprocess.run([sys.executable, "-I", "-c", program, self.path, mode],
                                          input="\n".join(self.functions()),
                                          capture_output=True, text=True, env=environment)
                    self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


class Cuda(Rules, unittest.TestCase):
    soname = "libcuda.so.1"

    def functions(self):
        return prototypes()

    def test_the_listing_has_all_prototypes(self):
        """What the generator read by libclang is what the C preprocessor shows."""
        version = re.search(r"#define CUDA_VERSION (\d+)", (Path(TOOLKIT) / "cuda.h").read_text())[1]
        listing = (SOURCE / "codegen" / "spec" / "abi" / f"{version}.txt").read_text().splitlines()
        self.assertEqual({line.split()[0] for line in listing}, prototypes())


class Nvml(Rules, unittest.TestCase):
    soname = "libnvidia-ml.so.1"

    def functions(self):
        return nvml_functions()


if __name__ == "__main__":
    unittest.main()
