"""The reference pages say what the code says. After a change that is right: reference_test.py --renew."""

import re
import sys
import unittest

from pages import SOURCE
from reference import MAKERS, PAGES, commands, errors, exit_code_lines, metrics, output, variables


def read(*patterns):
    return "\n".join(file.read_text() for pattern in patterns for file in sorted(SOURCE.glob(pattern)))


class Reference(unittest.TestCase):
    maxDiff = None

    def test_pages_are_what_the_code_says(self):
        for name, make in MAKERS.items():
            with self.subTest(name):
                self.assertMultiLineEqual((PAGES / name).read_text(), make(),
                                          "if the change is right: /usr/bin/python3 tests/docs/reference_test.py "
                                          "--renew")

    def test_every_variable_that_is_read_is_in_the_table(self):
        sources = [file for pattern in ("client/**/*.cpp", "client/**/*.h") for file in SOURCE.glob(pattern)
                   if file.name != "environment.cpp"]
        named = {name for file in sources for name in re.findall(r'"(FARGPU_[A-Z_0-9]+)"', file.read_text())}
        named.discard("FARGPU_SOFTGPU_")  # how those of the software GPU begin
        self.assertEqual({one["name"] for one in variables()}, named, "client/base/environment.cpp has the table")

    def test_help_has_examples_and_says_what_a_value_is(self):
        for name, text in commands().items():
            self.assertRegex(text, rf"(?m)^Example:\n  {name}", "client/cli/help.cpp has the table")
            self.assertNotRegex(text, r"(?m)^  -.* (TEXT|FLOAT|U?INT)\b",
                                f"client/cli/help.cpp has the table, for {name}")
        broker = output("fargpud", "--help")
        self.assertRegex(broker, r"(?m)^Example:\n  fargpud ")
        self.assertNotRegex(broker, r"(?m)^  -.* (TEXT|FLOAT|U?INT|NUMBER)\b", "settings_reading.cpp has kind_of")

    def test_exit_codes_of_the_source_are_told(self):
        told = {int(number) for text in commands().values() for number, _ in exit_code_lines(text)}
        known = {int(number) for number in re.findall(r"^inline constexpr int exit_\w+ = (\d+);",
                                                      read("client/cli/commands.h"), re.M)}
        self.assertEqual(told - {0, 1}, known)

    def test_errors_of_opening_and_losing_a_session_are_told(self):
        used = set(re.findall(r"CUDA_ERROR_(\w+)", read("client/connect/*.cpp", "client/connect/*.h",
                                                        "client/session/dial.cpp", "client/session/process.cpp",
                                                        "client/session/entry.h", "client/base/life.cpp",
                                                        "client/call/refusal.cpp")))
        used.discard("NOT_READY")  # an answer, not an error
        self.assertEqual({one["name"] for one in errors()}, used, "docs/reference/errors.toml has the table")

    def test_metrics_have_a_meaning(self):
        self.assertGreater(len(metrics()), 10)
        for name, (kind, meaning, labels) in metrics().items():
            self.assertRegex(name, "^fargpu_")
            self.assertIn(kind, ("counter", "gauge", "histogram"))
            self.assertTrue(meaning and "Hostname" in labels, name)


if __name__ == "__main__":
    if sys.argv[1:] == ["--renew"]:
        for name, make in MAKERS.items():
            (PAGES / name).write_text(make())
    else:
        unittest.main()
