#!/usr/bin/python3
"""The goals, as goals.toml has them: what a row is, and how good a figure is. `goals.py --renew` writes goals.md."""

import dataclasses
import os
import sys
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
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

    def mark(self, value):
        """How good a figure is: stretch, goal, floor, below floor; reported where there is nothing to compare with."""
        marks = [(word, getattr(self, word)) for word in ("stretch", "goal", "floor") if getattr(self, word) is not None]
        if not marks:
            return "reported"
        for word, bound in marks:
            if BETTER[self.better](value, bound):
                return word
        return "below floor" if self.floor is not None else "below goal"


class Goals:
    def __init__(self, path=os.path.join(HERE, "goals.toml")):
        with open(path, "rb") as file:
            self.rows = tomllib.load(file)
        self.goals = {}
        for name, row in self.rows.items():
            if row["better"] not in BETTER:
                raise ValueError(f"{path}: {name}: better is '{row['better']}'")
            for entry in row["goals"]:
                goal = Goal(name, **{"unit": row["unit"], "better": row["better"], **entry})
                key = (name, goal.on, goal.case)
                if key in self.goals:
                    raise ValueError(f"{path}: {name} has two goals for {key[1:]}")
                self.goals[key] = goal

    def of(self, row, on, case=""):
        """The goal of a figure; one without bounds where there is none."""
        about = self.rows[row]
        return self.goals.get((row, on, case)) or Goal(row, on, case, about["unit"], about["better"])

    def why_missing(self, goal):
        """Why there can be no figure, or nothing."""
        return self.rows[goal.row].get("missing")

    def markdown(self):
        text = ("# What the benchmark measures\n\nMade by `goals.py --renew` from `goals.toml`, which says what the words mean.\n")
        for group in dict.fromkeys(row["group"] for row in self.rows.values()):
            text += f"\n## {group}\n\n| row | metric | transport | case | unit | floor | goal | stretch | beats |\n|---|---|---|---|---|---|---|---|---|\n"
            for name, row in self.rows.items():
                if row["group"] != group:
                    continue
                sign = {"lower": "<=", "higher": ">="}[row["better"]]
                for i, goal in enumerate(g for g in self.goals.values() if g.row == name):
                    bounds = ["" if b is None else f"{sign} {b:g}" for b in (goal.floor, goal.goal, goal.stretch)]
                    first = [name, row["metric"]] if i == 0 else ["", ""]
                    text += "| " + " | ".join([*first, goal.on, goal.case, goal.unit, *bounds, row.get("beats", "") if i == 0 else ""]) + " |\n"
                if "missing" in row:
                    text += f"| | *{row['missing']}* | | | | | | | |\n"
        return text


if __name__ == "__main__":
    if sys.argv[1:] != ["--renew"]:
        sys.exit(__doc__)
    with open(os.path.join(HERE, "goals.md"), "w") as target:
        target.write(Goals().markdown())
