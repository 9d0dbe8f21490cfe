"""Two builds that took turns in one run: each figure of the new one beside that of the old."""

import dataclasses
import json
import math
import statistics

from goals import OLD, UNMEASURED
from results import NOT_RUN, in_columns, rounded
from rounds import spread

GROUPS = {"control", "programs"}  # their rows are measured of both
PART = 0.05  # of the old figure, from which on a worse one is marked


@dataclasses.dataclass
class Compared:
    row: str
    on: str
    case: str
    unit: str
    better: str
    old: float | None
    new: float | None
    ratios: list  # new / old of each round; none where an old figure is not above 0
    note: str = ""  # why there is no figure

    @property
    def ratio(self):
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def worse(self):
        """By more than a twentieth of the old figure; where that is 0, at all. So is a new build that has no figure."""
        if self.old is None or self.new is None:
            return self.old is not None
        if self.ratios:
            more = self.ratio - 1
        elif self.old:
            more = (self.new - self.old) / abs(self.old)
        else:
            more = self.new and math.copysign(math.inf, self.new)
        return more > PART if self.better == "lower" else more < -PART

    @property
    def verdict(self):
        return self.note or ("more than 5 % worse" if self.worse else "")


def compared(old, new):
    """Two figures of a row; one of them may be missing, for which its note says why."""
    one = new or old
    notes = [f"{name}: {result.note if result else 'not measured'}" for name, result in (("old", old), ("new", new))
             if result is None or result.value is None]
    ratios = []
    if not notes:
        rounds = list(zip(old.rounds or [old.value], new.rounds or [new.value]))
        ratios = [n / o for o, n in rounds] if all(o > 0 for o, _ in rounds) else []
    return Compared(one.row, one.on.removeprefix(f"{OLD} "), one.case, one.unit, one.better, old and old.value,
                    new and new.value, ratios, "; ".join(notes))


def taken_from(results):
    """Takes the old build's figures out of these, and compares the others with them."""
    old = {key: results.found.pop(key) for key, result in list(results.found.items())
           if result.on.startswith(f"{OLD} ")}
    of = {dataclasses.replace(result, on=result.on.removeprefix(f"{OLD} ")).key: result for result in old.values()}
    measured = [result.key for result in results.ordered() if result.mark not in (NOT_RUN, UNMEASURED)
                or result.key in of]
    return [compared(of.get(key), results.found.get(key))
            for key in [*measured, *(key for key in of if key not in results.found)]]


def table(pairs, rounds):
    """Medians, and between what rounds lie; beside them the median of each set of processes, which has so many
    rounds."""
    number = lambda v: "" if v is None else f"{v:.4g}"  # noqa: E731
    lines = [["row", "transport", "case", "old", "new", "unit", "new / old", "by sets of processes", ""]]
    for pair in pairs:
        sets = [statistics.median(pair.ratios[i:i + rounds]) for i in range(0, len(pair.ratios), rounds)]
        by_sets = " ".join(f"{one:.3f}" for one in sets) if len(sets) > 1 else ""
        lines.append([pair.row, pair.on, pair.case, number(pair.old), number(pair.new), pair.unit,
                      spread(pair.ratios) if pair.ratios else "", by_sets, pair.verdict])
    worse = [f"{pair.row} {pair.case} {pair.on}".replace("  ", " ") for pair in pairs if pair.worse]
    return in_columns(lines) + f"\n\nmore than 5 % worse: {', '.join(worse) or 'none'} of {len(pairs)}"


def json_of(pairs, facts):
    """A line for each pair."""
    lines = ",\n".join(json.dumps(rounded(dataclasses.asdict(pair) | {"ratio": pair.ratio, "worse": pair.worse}))
                       for pair in pairs)
    return f'{{"facts": {json.dumps(facts)},\n"compared": [\n{lines}\n]}}\n'
