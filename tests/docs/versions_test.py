"""One number: the change log, CMake, the commands and the packages are of one release."""

import os
import re
import subprocess
import unittest
from datetime import date
from pathlib import Path

from pages import SOURCE

BUILD = Path(os.environ.get("FARGPU_BUILD", SOURCE / "build"))
CHANGELOG = (SOURCE / "docs" / "CHANGELOG.md").read_text()
HEADINGS = re.findall(r"^## (.*)$", CHANGELOG, re.M)
RELEASE = re.compile(r"(\d+\.\d+\.\d+) "
                     r"\((?:commit ([0-9a-f]{7,40})|(\d{4}-\d\d-\d\d), the commit that sets this date)\)")


def number(version):
    return tuple(map(int, version.split(".")))


def version_of_cmake():
    return re.search(r"^project\(fargpu VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text(), re.M)[1]


class Versions(unittest.TestCase):
    def setUp(self):
        self.releases = [RELEASE.fullmatch(heading) for heading in HEADINGS if heading != "Unreleased"]

    def test_each_release_names_its_commit(self):
        self.assertNotIn(None, self.releases, HEADINGS)
        numbers = [number(release[1]) for release in self.releases]
        self.assertEqual(numbers, sorted(set(numbers), reverse=True))
        for release in self.releases:
            if release[3]:
                date.fromisoformat(release[3])

    def test_what_is_not_released_comes_first_and_is_something(self):
        self.assertNotIn("Unreleased", HEADINGS[1:])
        if HEADINGS[0] == "Unreleased":
            self.assertRegex(re.split(r"^## ", CHANGELOG, flags=re.M)[1], r"(?m)^- ")

    def test_the_newest_release_is_that_of_the_build_and_of_its_packages(self):
        newest = self.releases[0][1]
        self.assertEqual(version_of_cmake(), newest)
        for command in ("fargpu", "fargpud"):
            shown = subprocess.run([BUILD / "bin" / command, "--version"], capture_output=True, text=True, check=True)
            self.assertEqual(shown.stdout, f"{command} {newest}\n")
        packages = re.search(r'^set\(CPACK_PACKAGE_VERSION "(.*)"\)', (BUILD / "CPackConfig.cmake").read_text(), re.M)
        self.assertEqual(packages[1], newest)

    def test_the_page_of_what_works_together_has_every_release(self):
        page = (SOURCE / "docs" / "reference" / "compatibility.md").read_text()
        for release in self.releases:
            self.assertIn(f"| {release[1]} | {release[1]} | works |", page)


if __name__ == "__main__":
    unittest.main()
