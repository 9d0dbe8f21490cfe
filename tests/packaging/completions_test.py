"""What the shells offer behind words of a command line: bash is asked, the files of the others hold the same words."""

import os
import subprocess
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FARGPU_BUILD", SOURCE / "build"))
FILES = BUILD / "codegen" / "packaging" / "completions"

ASK = """
source "$1"; shift
compopt() { :; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_$1
printf '%s\\n' "${COMPREPLY[@]}"
"""


def offered(*words):
    done = subprocess.run(["bash", "--norc", "-c", ASK, "bash", FILES / f"{words[0]}.bash", *words], check=True,
                          capture_output=True, text=True)
    return done.stdout.split()


class Completions(unittest.TestCase):
    def test_commands(self):
        self.assertLessEqual({"run", "ls", "doctor", "token", "--version"}, set(offered("fargpu", "")))
        self.assertEqual(offered("fargpu", "doc"), ["doctor"])
        self.assertLessEqual({"create", "list", "revoke"}, set(offered("fargpu", "token", "")))

    def test_options_of_the_command_that_is_begun(self):
        self.assertEqual(offered("fargpu", "run", "--pr"), ["--priority"])
        self.assertEqual(offered("fargpu", "ls", "--pr"), [])
        self.assertEqual(offered("fargpu", "token", "create", "--tt"), ["--ttl"])

    def test_values(self):
        self.assertEqual(offered("fargpu", "ls", "-o", ""), ["table", "json"])
        self.assertEqual(offered("fargpu", "run", "--mem", ""), [])

    def test_behind_the_dashes_it_is_the_programs_turn(self):
        self.assertEqual(offered("fargpu", "run", "--", "prog", "--pr"), [])

    def test_the_broker(self):
        self.assertEqual(offered("fargpud", "--show"), ["--show-config"])

    def test_the_files_of_all_shells_know_all_words(self):
        for shell in ("bash", "zsh", "fish"):
            text = (FILES / f"fargpu.{shell}").read_text()
            for word in ("doctor", "revoke", "token create", "priority",
                         "table json" if shell != "zsh" else "'table' 'json'"):
                self.assertIn(word, text, shell)


if __name__ == "__main__":
    unittest.main()
