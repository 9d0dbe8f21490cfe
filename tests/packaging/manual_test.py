"""The manual pages have all that the commands' help has, and nothing else."""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FARGPU_BUILD", SOURCE / "build"))
PAGES = BUILD / "codegen" / "packaging" / "manual"


def output(program, *arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FARGPU_", "FARGPUD_"))}
    return subprocess.run([BUILD / "bin" / program, *arguments], check=True, capture_output=True, text=True,
                          env=clean).stdout


def plain(name):
    """A page without the marks of its language."""
    text = (PAGES / name).read_text()
    text = re.sub(r"\\f[BIR]", "", text).replace("\\-", "-").replace("\\e", "\\").replace("\\&", "")
    return re.sub(r'^\.SS "(.*)"$', r".SS \1", text, flags=re.M)


def entries(text):
    """The names that a page explains."""
    return [name for line in re.findall(r"^\.TP\n(.*)$", text, re.M)
            for name in re.split(r",? ", line) if re.match("--?\\w", name)]


def options(help_text):
    rows = re.findall(r"^  (-\S+)", help_text, re.M)
    return [name for row in rows for name in row.split(",")]


class Manual(unittest.TestCase):
    maxDiff = None

    def test_every_command_with_its_options(self):
        page = plain("fargpu.1")
        sections = dict(zip(["fargpu", *re.findall(r"^\.SS (.*)$", page, re.M)],
                            re.split(r"^\.SS .*$", page, flags=re.M)))
        seen = []

        def check(*words):
            name = " ".join(("fargpu", *words))
            seen.append(name)
            help_text = output("fargpu", *words, "--help")
            self.assertEqual(entries(sections[name]), options(help_text), name)
            for code, meaning in re.findall(r"^  (\d+) +(.+)$", help_text.partition("Exit codes:")[2], re.M):
                self.assertIn(f".TP\n{code}\n{meaning}\n", sections[name])
            for below in re.findall(r"^  (\w+)  ", help_text.partition("\nSubcommands:\n")[2].partition("\n\n")[0],
                                    re.M):
                check(*words, below)

        check()
        self.assertEqual(set(seen), set(sections))
        self.assertGreater(len(seen), 10)

    def test_examples_stand_on_lines_of_their_own(self):
        page = plain("fargpu.1")
        examples = re.findall(r"^Example:\n  (fargpu .*)$", output("fargpu", "run", "--help"), re.M)
        self.assertTrue(examples)
        for example in examples:
            self.assertIn(f"Example:\n.PP\n.RS 4\n.nf\n{example}\n.fi\n.RE\n", page)

    def test_the_broker(self):
        help_text = output("fargpud", "--help")
        page = plain("fargpud.8")
        self.assertEqual(entries(page), options(help_text))
        self.assertNotIn(str(BUILD), page)
        self.assertEqual(re.findall(r"^\.TP\n(\d)$", page, re.M), ["0", "1", "2"])

    def test_variables(self):
        page = plain("fargpu-environment.7")
        table = json.loads(output("fargpu", "variables", "-o", "json"))
        self.assertEqual(re.findall(r"^\.TP\n(\w+)", page, re.M), [one["name"] for one in table])
        for one in table:
            self.assertIn(f"\n{one['meaning'].replace('`', '')}\n", page)

    def test_settings(self):
        self.assertEqual(re.findall(r"^\.TP\n(\w+) = ", plain("fargpud.toml.5"), re.M),
                         re.findall(r"^# (\w+) = ", output("fargpud", "--sample-config"), re.M))

    def test_they_are_no_older_than_the_programs(self):
        for page in ("fargpu.1", "fargpud.8"):
            program = BUILD / "bin" / page.split(".")[0]
            self.assertGreaterEqual((PAGES / page).stat().st_mtime, program.stat().st_mtime,
                                    "build the target installed_texts")


if __name__ == "__main__":
    unittest.main()
