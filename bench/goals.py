#!/usr/bin/python3
"""The goals, as goals.toml has them: what a row is, and how good a figure is. `goals.py --renew` writes goals.md."""

import dataclasses
import itertools
import os
import sys
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
OLD = "old"  # before a transport's name: of the build that another is compared with
BETTER = {"lower": lambda a, b: a <= b, "higher": lambda a, b: a >= b}


@dataclasses.dataclass(frozen=True)
class Goal:
    row: str
    on: str
    case: str = ""
    unit: str = ""
    better: str = ""
    floor: float | None = None
    goal: float | None = None
    stretch: float | None = None
    unmeasured: str = ""  # why there is no figure yet

    def mark(self, value):
        """How good a figure is: stretch, goal, floor, or below the last of them; reported where there is nothing to
        compare with."""
        marks = [(word, getattr(self, word)) for word in ("stretch", "goal", "floor")
                 if getattr(self, word) is not None]
        for word, bound in marks:
            if BETTER[self.better](value, bound):
                return word
        return f"below {marks[-1][0]}" if marks else "reported"

    def why_missing(self):
        """What stands in the place of a figure; nothing where there is a measurement."""
        return f"{UNMEASURED}: {self.unmeasured}" if self.unmeasured else ""


UNMEASURED = "not measured yet"
UNPUBLISHED = "no figure is published yet"  # why there is none of what the benchmark measures


def each(value):
    return value if isinstance(value, list) else [value]


class Goals:
    def __init__(self, path=os.path.join(HERE, "goals.toml")):
        with open(path, "rb") as file:
            self.rows = tomllib.load(file)
        self.goals = {}
        for name, row in self.rows.items():
            if row["better"] not in BETTER:
                raise ValueError(f"{path}: {name}: better is '{row['better']}'")
            common = {word: row[word] for word in ("unit", "better", "unmeasured") if word in row}
            for entry in row["goals"]:
                for on, case in itertools.product(each(entry["on"]), each(entry.get("case", ""))):
                    if (name, on, case) in self.goals:
                        raise ValueError(f"{path}: {name} has two goals for {on, case}")
                    self.goals[name, on, case] = Goal(name, **{**common, **entry, "on": on, "case": case})

    def of(self, row, on, case=""):
        """The goal of a figure, whichever build it is of; one without bounds where there is none."""
        about = self.rows[row]
        return self.goals.get((row, on.removeprefix(f"{OLD} "),
                               case)) or Goal(row, on, case, about["unit"], about["better"])

    def markdown(self):
        text = ("# What the benchmark measures\n\nMade by `goals.py --renew` from `goals.toml`, which says what the "
                "words mean.\n")
        for group in dict.fromkeys(row["group"] for row in self.rows.values()):
            heads = ("row", "metric", "transport", "case", "unit", "floor", "goal", "stretch", "beats", "figure")
            text += f"\n## {group}\n\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n"
            for name, row in self.rows.items():
                if row["group"] != group:
                    continue
                for i, goal in enumerate(g for g in self.goals.values() if g.row == name):
                    sign = {"lower": "<=", "higher": ">="}[goal.better]
                    bounds = ["" if b is None else f"{sign} {b:g}" for b in (goal.floor, goal.goal, goal.stretch)]
                    *first, beats = [name, row["metric"], row.get("beats", "")] if i == 0 else ["", "", ""]
                    text += "| " + " | ".join([*first, goal.on, goal.case, goal.unit, *bounds, beats,
                                               goal.why_missing()]) + " |\n"
        return text


if __name__ == "__main__":
    if sys.argv[1:] != ["--renew"]:
        sys.exit(__doc__)
    with open(os.path.join(HERE, "goals.md"), "w") as target:
        target.write(Goals().markdown())
