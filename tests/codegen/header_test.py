"""What makes the headers unfit to be trusted."""

import unittest

from rig import GeneratorTest


class Headers(GeneratorTest):
    def assert_stops_with(self, pattern):
        code, out, err = self.generate()
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(err, rf"^fargpu codegen stopped:\n{pattern}\n$")
        self.assertFalse((self.folder / "out").exists())

    def test_no_toolkit(self):
        (self.folder / "toolkit" / "cuda.h").unlink()
        self.assert_stops(f"{self.folder}/toolkit/cuda.h: no such file; give the toolkit's include folder with "
                          "--include")

    def test_no_version(self):
        self.change("toolkit/cuda.h", "#define CUDA_VERSION 13000\n", "")
        self.assert_stops(f"{self.folder}/toolkit/cuda.h: CUDA_VERSION is not defined; this is no CUDA toolkit header")

    def test_errors_of_the_parser(self):
        """After each of these libclang goes on, with types that it guessed."""
        untrusted = "the headers do not parse, so no type can be trusted: check the include folder"
        faults = {
            "unknown type": ("cuda.h", "CUresult CUDAAPI cuInit(unsigned int Flags);",
                             "CUresult CUDAAPI cuInit(CUflags Flags);", r"unknown type name 'CUflags'"),
            "missing header": ("cuda.h", "#include <stddef.h>", "#include <stddeff.h>", r"'stddeff\.h' file not found"),
            "syntax": ("cudaProfiler.h", "(void);", "(void;", r"expected '\)'"),
            "error directive": ("cudaTypedefs.h", "#pragma once", "#error not for you", r"not for you"),
        }
        for what, (file, old, new, message) in faults.items():
            with self.subTest(what):
                self.restore()
                self.change(f"toolkit/{file}", old, new)
                self.assert_stops_with(rf"{self.folder}/toolkit/{file}:\d+: {message}; {untrusted}")

    def test_warnings_are_no_errors(self):
        self.change("toolkit/cuda.h", "#pragma once", "#pragma once\n#warning look here")
        self.assert_accepted()

    def test_type_of_no_known_kind(self):
        self.change("toolkit/cuda.h", "cuInit(unsigned int Flags)", "cuInit(__int128 Flags)")
        self.change("toolkit/cudaTypedefs.h", "cuInit_v2000)(unsigned int Flags)", "cuInit_v2000)(__int128 Flags)")
        self.assert_stops("cuda.h:38: cuInit, parameter Flags: type '__int128' (INT128) is of a kind the generator "
                          "does not know; teach "
                          "header.py about it")

    def test_typedefs_of_another_toolkit(self):
        self.change("toolkit/cudaTypedefs.h", "PFN_cuBoxGetSize_v12040", "PFN_cuBoxSize_v12040")
        self.assert_stops("cuda.h: cuBoxGetSize has 2 variants but cudaTypedefs.h names 1; the two headers are not of "
                          "one toolkit")

    def test_typedefs_in_another_order(self):
        """The older version gets the newer signature."""
        self.change("toolkit/cudaTypedefs.h", "PFN_cuBoxGetSize_v12040", "PFN_cuBoxGetSize_v11000")
        self.assert_stops("cuda.h: cuBoxGetSize has type 'cudaError_enum (unsigned int *, CUbox_st *)' but "
                          "PFN_cuBoxGetSize_v11000 has "
                          "'cudaError_enum (unsigned long *, CUbox_st *)'; the pairing by version is broken")

    def test_typedef_without_version(self):
        self.change("toolkit/cudaTypedefs.h", "PFN_cuInit_v2000", "PFN_cuInit")
        self.assert_stops("cudaTypedefs.h: 'PFN_cuInit' is not of the form PFN_<base>_v<version>[_ptsz]")


if __name__ == "__main__":
    unittest.main()
