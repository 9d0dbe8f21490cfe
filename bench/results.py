"""What was measured, and how it is shown: a table, Markdown, JSON, a page with plots."""

import dataclasses
import datetime
import html
import json
import statistics

from goals import UNMEASURED, UNPUBLISHED

NOT_RUN = "not run"
TABLE = ("<!-- table -->", "<!-- end of table -->")  # lines around the table in a Markdown file


@dataclasses.dataclass
class Result:
    row: str
    on: str  # transport
    case: str
    unit: str
    value: float | None = None  # the median over rounds
    rounds: list = dataclasses.field(default_factory=list)
    mark: str = ""
    floor: float | None = None
    goal: float | None = None
    stretch: float | None = None
    better: str = "lower"
    # what it was made of, by name, numbers in seconds, bytes or counts
    detail: dict = dataclasses.field(default_factory=dict)
    note: str = ""
    when: str = ""  # in UTC

    @property
    def key(self):
        return f"{self.row} {self.case} {self.on}"


class Results:
    def __init__(self, goals):
        self.goals, self.found = goals, {}

    def add(self, row, on, value=None, case="", rounds=(), detail=None, note=""):
        """A figure; None where there is none, and then the note says why."""
        goal = self.goals.of(row, on, case)
        rounds = [float(r) for r in rounds]
        if rounds:
            value = statistics.median(rounds)
        result = judged(Result(row, on, case, goal.unit, value, rounds, detail=detail or {}, note=note,
                               when=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")), goal)
        self.found[result.key] = result
        print("  " + " | ".join(self.cells(result)), flush=True)

    def fill(self, groups, rows):
        """Rows that have goals and no figure say so."""
        for goal in self.goals.goals.values():
            about = self.goals.rows[goal.row]
            wanted = about["group"] in groups and (not rows or goal.row in rows)
            if wanted and f"{goal.row} {goal.case} {goal.on}" not in self.found:
                why = "" if goal.unmeasured == UNPUBLISHED else goal.why_missing()
                self.add(goal.row, goal.on, None, goal.case, note=why or f"{NOT_RUN}: this run did not include it")

    def merge(self, path):
        """Figures of an earlier run, marked by the goals of today. A figure of this one, or of a later file, stands;
        `not run` and failures give way to any figure. Why a row is not measured yet is said by the goals alone. Returns
        what is said of the machine."""
        with open(path) as file:
            kept = json.load(file)
        for entry in kept["results"]:
            result = Result(**entry)
            goal = self.goals.of(result.row, result.on, result.case)
            if goal.unit != result.unit:
                raise ValueError(f"{path}: {result.key} is in {result.unit}, and its goal in {goal.unit}")
            before = self.found.get(result.key)
            if result.mark == UNMEASURED:
                continue
            if before is None or result.value is not None or before.value is None and before.mark == NOT_RUN:
                self.found[result.key] = judged(result, goal)
        return kept["facts"]

    def with_unmeasured(self):
        """These results, and a row for each goal that is not measured yet."""
        every = Results(self.goals)
        every.found = dict(self.found)
        for goal in self.goals.goals.values():
            result = Result(goal.row, goal.on, goal.case, goal.unit, note=goal.why_missing())
            if result.note and (result.key not in every.found or every.found[result.key].mark == NOT_RUN):
                every.found[result.key] = judged(result, goal)
        return every

    def ordered(self):
        names = list(self.goals.rows)
        return sorted(self.found.values(), key=lambda r: (names.index(r.row), r.on.split("+")[0] == "shm", r.case,
                                                          float((r.on.split("+") + ["0"])[1])))

    # --- showing -----------------------------------------------------------------------------------------------------

    HEADS = ["row", "transport", "case", "figure", "unit", "rounds", "floor", "goal", "stretch", "mark", "made of"]

    def cells(self, r):
        number = lambda v: "" if v is None else f"{v:.4g}"  # noqa: E731
        spread = f"{number(min(r.rounds))} - {number(max(r.rounds))}" if r.rounds else ""
        return [r.row, r.on, r.case, number(r.value), r.unit, spread, number(r.floor), number(r.goal),
                number(r.stretch), r.mark,
                "; ".join(filter(None, [", ".join(details(r)), r.note]))]

    def table(self):
        return in_columns([self.HEADS] + [self.cells(r) for r in self.ordered()])

    def summary(self):
        counts = {}
        for r in self.found.values():
            counts[r.mark] = counts.get(r.mark, 0) + 1
        return ", ".join(f"{count} {mark}" for mark, count in sorted(counts.items()))

    def json(self, facts):
        """A line for each figure."""
        lines = ",\n".join(json.dumps(rounded(dataclasses.asdict(r))) for r in self.ordered())
        return f'{{"facts": {json.dumps(facts)},\n"results": [\n{lines}\n]}}\n'

    def markdown(self):
        """The table as Markdown. Rows that were not run are not in it."""
        heads = ["row", "transport", "case", "figure", "unit", "floor", "goal", "mark"]
        rows = [[*heads, "of"], ["---"] * (len(heads) + 1)]
        for r in self.ordered():
            if r.value is not None or r.mark != NOT_RUN:
                cells = dict(zip(self.HEADS, self.cells(r)))
                of = ", ".join(details(r)[:3]) if r.value is not None else r.note.removeprefix(f"{r.mark}: ")
                rows.append([" ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;")
                             for cell in [*(cells[head] for head in heads), of]])
        text = ["| " + " | ".join(row) + " |" for row in rows]
        text[1] = text[1].replace(" ", "")
        return "\n".join(text)

    def page(self, path, facts):
        colours = {"stretch": "#0a7d33", "goal": "#4c9f38", "floor": "#d39e00", "below floor": "#c62828",
                   "below goal": "#c62828"}
        text = ["<!doctype html><html lang=en><meta charset=utf-8><title>fargpu benchmark</title><style>body{font:14px "
                "sans-serif;max-width:1100px;"
                "margin:2em auto;color:#222}table{border-collapse:collapse}td,th{padding:2px 8px;border-bottom:1px "
                "solid #ddd;text-align:left;"
                "vertical-align:top}h2{margin-top:2em}small{color:#666}.bar{display:flex;align-items:center}</style>"
                "<h1>fargpu benchmark</h1>"]
        text.append("<p>" + html.escape("; ".join(f"{k}: {v}" for k, v in facts.items())) + "</p>")
        text.append("<p>" + html.escape(self.summary()) + ". Bars are medians over rounds, whiskers the rounds; lines: "
                    "<span style='color:#c62828'>floor</span>, <span style='color:#4c9f38'>goal</span>, <span "
                    "style='color:#1565c0'>stretch</span>.</p>")
        for name, about in self.goals.rows.items():
            results = [r for r in self.ordered() if r.row == name]
            if not results:
                continue
            text.append(f"<h2 id={name}>{name}: {html.escape(about['metric'])}</h2><table>")
            for r in results:
                cells = self.cells(r)
                colour = colours.get(r.mark, "#777")
                text.append(f"<tr><td>{html.escape(r.on)}</td><td>{html.escape(r.case)}</td><td>{bar(r, colour)}</td>"
                            f"<td style='white-space:nowrap'>{cells[3]} "
                            f"{html.escape(r.unit) if r.value is not None else ''}</td>"
                            f"<td style='color:{colour};white-space:nowrap'>{html.escape(r.mark)}</td>"
                            f"<td><small>{html.escape(cells[-1])}</small>{lines(r)}</td></tr>")
            text.append("</table>")
        with open(path, "w") as file:
            file.write("\n".join(text) + "</html>\n")


def judged(result, goal):
    """A result beside the bounds of its goal."""
    mark = result.note.split(":")[0] if result.value is None else goal.mark(result.value)
    return dataclasses.replace(result, mark=mark, floor=goal.floor, goal=goal.goal, stretch=goal.stretch,
                               better=goal.better)


def in_columns(lines):
    """Lines of cells, each column as wide as its widest; the last one as it comes."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths)), line[-1]]).rstrip()
                     for line in lines)


def in_table(text, table):
    """A Markdown text with its table, between the lines that bound it, replaced."""
    lines = text.split("\n")
    begin = lines.index(TABLE[0]) + 1
    return "\n".join([*lines[:begin], table, *lines[lines.index(TABLE[1], begin):]])


def rounded(value):
    """To six digits, in whatever it lies."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def details(r):
    """What a figure was made of, in words; series are left out."""
    return [f"{name} {shown(name, value)}" for name, value in r.detail.items() if not isinstance(value, list)]


def bar(r, colour, width=340, height=22):
    """A bar with its bounds, as SVG."""
    if r.value is None:
        return "<small>no figure</small>"
    bounds = [(r.floor, "#c62828"), (r.goal, "#4c9f38"), (r.stretch, "#1565c0")]
    most = max([abs(r.value), *(abs(b) for b, _ in bounds if b is not None), *map(abs, r.rounds)]) * 1.05 or 1.0
    at = lambda v: max(0.0, v) / most * width  # noqa: E731
    parts = [f"<rect x=0 y=4 width={at(r.value):.1f} height={height - 8} fill='{colour}' opacity=.65 />"]
    if r.rounds:
        low, high = at(min(r.rounds)), at(max(r.rounds))
        parts.append(f"<line x1={low:.1f} x2={high:.1f} y1={height / 2} y2={height / 2} stroke='#222' />")
    for bound, ink in bounds:
        if bound is not None:
            parts.append(f"<line x1={at(bound):.1f} x2={at(bound):.1f} y1=0 y2={height} stroke='{ink}' stroke-width=2 "
                         "/>")
    return f"<svg width={width + 4} height={height}>{''.join(parts)}</svg>"


def lines(r, width=340, height=60):
    """The series of a figure, each as a line over time, as SVG; nothing if it has none."""
    series = {name: values for name, values in r.detail.items() if isinstance(values, list) and len(values) > 1}
    if not series:
        return ""
    most = max(max(values) for values in series.values()) or 1.0
    inks = ["#1565c0", "#c62828", "#4c9f38", "#d39e00", "#6a1b9a", "#00838f", "#5d4037", "#455a64"]
    parts = []
    for i, (name, values) in enumerate(series.items()):
        points = " ".join(f"{x * width / (len(values) - 1):.1f},{height - v / most * (height - 4):.1f}"
                          for x, v in enumerate(values))
        parts.append(f"<polyline points='{points}' fill=none "
                     f"stroke='{inks[i % len(inks)]}'><title>{html.escape(name)}</title></polyline>")
    return f"<br><svg width={width} height={height}>{''.join(parts)}</svg>"


def shown(name, value):
    """A number as people read it; names say what it is."""
    if not isinstance(value, float):
        return str(value)
    if name.endswith(("GB/s", "round trips", "launches/s", "CPU s/GB", "bytes", "%")):
        return f"{value:.4g}"
    for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if abs(value * scale) >= 1:
            return f"{value * scale:.4g} {unit}"
    return f"{value * 1e9:.4g} ns"
