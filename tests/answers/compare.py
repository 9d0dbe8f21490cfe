#!/usr/bin/env python3
"""Compares two files of answers: compare.py FIRST SECOND [--pair NAME] [--all]

FIRST holds the answers that are right: the driver's, or those of a library that fargpu was in front of. What differs
and stands in differences.toml, for this pair, counts as explained. The exit code is 0 if nothing else differs."""

import argparse
import collections
import fnmatch
import re
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAIRS = {"fargpu": "a library directly, and fargpu in front of it",
         "software": "the driver, and the software GPU",
         "both": "the driver, and fargpu in front of the software GPU"}
SHOWN = 400  # differences


def read(path):
    """(what answered, {(symbol, case): answer}) of a file that the program `answers` wrote."""
    header, answers, symbol = "", {}, None
    for line in Path(path).read_text().splitlines():
        if line.startswith("#"):
            header = line[1:].strip()
        elif line.startswith("  "):
            answer, _, cases = line[2:].partition(" | ")
            for case in cases.split("; "):
                answers[symbol, case] = answer
        else:
            symbol = line
    return header, answers


def alike(first, second):
    """Equal, or numbers that may differ by some percent and differ by less."""
    numbers = [re.fullmatch(r"~(-?\d+) of (\d+)%", answer) for answer in (first, second)]
    if not all(numbers):
        return first == second
    a, b = (int(n[1]) for n in numbers)
    return abs(a - b) * 100 <= int(numbers[0][2]) * max(abs(a), abs(b))


def is_error(answer):
    return re.match(r"[1-9]\d*( |$)", answer) is not None


class Explained:
    """differences.toml: which differences stay, and why."""

    def __init__(self, pair, path=HERE / "differences.toml"):
        self.rows = [row for row in tomllib.loads(path.read_text()).get("different", []) if pair in row["pairs"]]
        for row in self.rows:
            row["used"] = 0
            row["patterns"] = [(field, re.compile("|".join(fnmatch.translate(p) for p in listed(row.get(field, "*")))))
                               for field in ("calls", "cases", "first", "second")]

    def why(self, symbol, case, first, second):
        for row in self.rows:
            values = dict(calls=symbol, cases=case, first=first, second=second)
            if all(pattern.match(values[field]) for field, pattern in row["patterns"]):
                row["used"] += 1
                return row["why"]
        return None

    def unused(self):
        return [row for row in self.rows if not row["used"]]


def listed(value):
    return value if isinstance(value, list) else [value]


class Comparison:
    """Of two sets of answers, by the rules of a pair."""

    def __init__(self, first, second, pair):
        self.explained = Explained(pair)
        self.equal = self.undefined = self.unasked = 0
        self.reasons = collections.Counter()
        self.different = []  # (symbol, case, first, second)
        for (symbol, case), answer in second.items():
            self.judge(symbol, case, first.get((symbol, case)), answer)

    def judge(self, symbol, case, first, second):
        if first is None and not case.endswith("?"):
            self.unasked += 1
            return
        if case.endswith("?") or first.startswith(("signal", "hangs")):
            # The driver's answer is not defined: any error is right, a crash is not.
            if is_error(second) or (first and first == second and not second.startswith(("signal", "hangs"))):
                self.undefined += 1
                return
            first = first or "any error"
        elif alike(first, second):
            self.equal += 1
            return
        why = self.explained.why(symbol, case, first, second)
        if why:
            self.reasons[why] += 1
        else:
            self.different.append((symbol, case, first, second))

    def lines(self, shown=SHOWN):
        """The differences that nothing explains, those of one kind together, and the sums."""
        kinds = collections.defaultdict(list)
        for symbol, case, first, second in self.different:
            kinds[symbol, first, second].append(case)
        for (symbol, first, second), cases in list(kinds.items())[:shown]:
            yield f"{symbol} [{'; '.join(cases)}]: {first} -> {second}"
        if len(kinds) > shown:
            yield f"... and {len(kinds) - shown} more"
        for why, count in self.reasons.most_common():
            yield f"explained {count}: {why}"
        yield (f"{self.equal} equal, {self.undefined} errors where none is defined, {sum(self.reasons.values())} "
               f"explained, {len(self.different)} different"
               + (f"; {self.unasked} without an answer to compare with" if self.unasked else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--pair", choices=PAIRS, default="fargpu",
                        help="; ".join(f"{name}: {what}" for name, what in PAIRS.items()) + " (default: fargpu)")
    parser.add_argument("--all", action="store_true", help="show every difference")
    options = parser.parse_args()
    comparison = Comparison(read(options.first)[1], read(options.second)[1], options.pair)
    print("\n".join(comparison.lines(10**9 if options.all else SHOWN)))
    return 1 if comparison.different else 0


if __name__ == "__main__":
    sys.exit(main())
