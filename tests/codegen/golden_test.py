"""What is made of the toolkit in small, file by file. A change of the templates shows here as a diff to read:

    python3 tests/codegen/golden_test.py --renew

writes golden/ anew."""

import shutil
import sys
import unittest

from rig import HERE, GeneratorTest, main

GOLDEN = HERE / "golden"


class Golden(GeneratorTest):
    def test_each_file(self):
        self.assert_accepted()
        out = self.folder / "out"
        self.assertEqual(sorted(p.name for p in out.iterdir()), sorted(p.name for p in GOLDEN.iterdir()))
        for path in sorted(out.iterdir()):
            with self.subTest(path.name):
                self.assertMultiLineEqual(path.read_text(), (GOLDEN / path.name).read_text(),
                                          "if the change is right: python3 tests/codegen/golden_test.py --renew")

    def test_files_that_did_not_change_keep_their_time(self):
        """So that a change of the spec rebuilds what depends on it and no more."""
        self.assert_accepted()
        times = {p.name: p.stat().st_mtime_ns for p in (self.folder / "out").iterdir()}
        self.change("spec/box.toml", "sizes have 64 bits", "sizes have 65 bits")
        self.assert_accepted()
        changed = {p.name for p in (self.folder / "out").iterdir() if p.stat().st_mtime_ns != times[p.name]}
        self.assertEqual(changed, {"symbols.cpp", "coverage.md"})


if __name__ == "__main__":
    if "--renew" in sys.argv:
        shutil.rmtree(GOLDEN, ignore_errors=True)
        sys.exit(main(["generate", "--include", str(HERE / "toolkit"), "--spec", str(HERE / "spec"), "--out",
                       str(GOLDEN)]))
    unittest.main()
