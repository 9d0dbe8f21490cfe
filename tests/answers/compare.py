#!/usr/bin/env python3
"""Compares files of answers: compare.py RIGHT... ANSWERS [--all]

Each answer has to be one of the right ones: the driver's, or those of a library that fargpu was in front of. What
differs and stands in differences.toml counts as explained. The exit code is 0 if nothing else differs."""

import argparse
import collections
import fnmatch
import re
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHOWN = 400  # differences
CRASHES = ("signal", "hangs", "ends with", "no process")
LOST = re.compile(r"46\b|no fixture: .* gives 46$")  # DEVICE_UNAVAILABLE: the session, as its worker died


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

    def __init__(self, path=HERE / "differences.toml"):
        self.rows = tomllib.loads(path.read_text())["different"]
        for row in self.rows:
            row["patterns"] = [(field, re.compile("|".join(fnmatch.translate(p) for p in listed(row.get(field, "*")))))
                               for field in ("calls", "cases", "first", "second")]

    def why(self, symbol, case, first, second):
        for row in self.rows:
            values = dict(calls=symbol, cases=case, first=first, second=second)
            if row.get("outputs_of_errors") and not (is_error(first) and first.split()[0] == second.split()[0]):
                continue
            if all(pattern.match(values[field]) for field, pattern in row["patterns"]):
                return row["why"]
        return None


def listed(value):
    return value if isinstance(value, list) else [value]


class Comparison:
    """Of answers with the right ones. Where one of those crashes or hangs, or was not asked because it is not defined,
    any error is right."""

    def __init__(self, right, answers):
        self.explained = Explained()
        self.equal = self.undefined = self.unasked = 0
        self.reasons = collections.Counter()
        self.different = []  # (symbol, case, right answer, answer)
        for (symbol, case), answer in answers.items():
            known = [one[symbol, case] for one in right if (symbol, case) in one]
            self.judge(symbol, case, known, answer)

    def judge(self, symbol, case, right, answer):
        if not right and (answer.startswith("no fixture") or not case.endswith("?")):
            self.unasked += 1
            return
        if any(alike(one, answer) for one in right) and not answer.startswith(CRASHES):
            self.equal += 1
            return
        if (case.endswith("?") or any(one.startswith(CRASHES) for one in right)) and is_error(answer):
            self.undefined += 1
            return
        first = right[0] if right else "any error"
        if LOST.match(answer):  # nothing explains that
            self.different.append((symbol, case, first, answer))
            return
        why = self.explained.why(symbol, case, first, answer)
        if why:
            self.reasons[why] += 1
        else:
            self.different.append((symbol, case, first, answer))

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
    parser.add_argument("right", nargs="+")
    parser.add_argument("answers")
    parser.add_argument("--all", action="store_true", help="show every difference")
    options = parser.parse_args()
    comparison = Comparison([read(path)[1] for path in options.right], read(options.answers)[1])
    print("\n".join(comparison.lines(10**9 if options.all else SHOWN)))
    return 1 if comparison.different else 0


if __name__ == "__main__":
    sys.exit(main())
