"""The published figures as pictures, SVG: how programs compare with themselves locally, and how loads share a device
over time."""

import html
import math

INKS = ("#1565c0", "#c62828", "#2e7d32", "#d39e00", "#6a1b9a", "#00838f", "#5d4037", "#455a64")
STYLE = "font-family='sans-serif' font-size='12' fill='#222'"

PROGRAMS = {
    ("W1", ""): "ResNet-50 training, batch 64",
    ("W2", ""): "the same, .item() each step",
    ("W3", ""): "ResNet-50 inference, batch 1",
    ("W4", ""): "GPT-2 small training, .item()",
    ("W5", ""): "GPT-2 small generating, eager",
    ("W6", "compile"): "training step by torch.compile",
    ("W6", "graph"): "replays of a CUDA graph",
    ("W8", ""): "decoding from pinned host memory",
}
WAYS = {"shm": "same host", "tcp": "TCP", "tcp+0.1": "TCP, 0.1 ms round trip", "tcp+1": "TCP, 1 ms round trip"}

LOADS = ("short kernels", "20 ms kernels", "graphs", "copies")
TAKEN_TOGETHER = 5  # samples of 0.1 s


def text(x, y, words, anchor="start", more=""):
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {more}>{html.escape(words)}</text>"


def picture(width, height, parts):
    return (f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' "
            f"{STYLE}>\n"
            + "\n".join([f"<rect width='{width}' height='{height}' fill='#fff'/>", *parts]) + "\n</svg>\n")


def programs(results):
    """Time of a step through fargpu over the local one, by the way there: the median over the rounds, as in the
    table."""
    left, right, line = 240, 620, 26
    rows = [(label, {on: float(r.detail["T / N"]) for on in WAYS if (r := results.found.get(f"{row} {case} {on}"))
                     and r.value is not None})
            for (row, case), label in PROGRAMS.items()]
    shown = [ratio for _, ratios in rows for ratio in ratios.values()]
    low, high = min(0.7, *(math.floor(10 * ratio) / 10
                           for ratio in shown)), max(1.2, *(math.ceil(10 * ratio) / 10 for ratio in shown))
    bottom = 40 + line * len(rows)
    at = lambda ratio: left + (ratio - low) / (high - low) * (right - left)  # noqa: E731
    parts = [text(left, 18, "time of a step, locally = 1 (less is faster)", more="font-weight='bold'")]
    for tenth in range(round(low * 10), round(high * 10) + 1):
        x, local = at(tenth / 10), tenth == 10
        parts.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='28' y2='{bottom}' stroke='{'#222' if local else '#ddd'}'/>")
        parts.append(text(x, bottom + 16, f"{tenth / 10:.1f}", "middle"))
    for i, (label, ratios) in enumerate(rows):
        y = 44 + line * i
        parts.append(text(left - 12, y + 4, label, "end"))
        for ink, (on, ratio) in zip((INKS[list(WAYS).index(on)] for on in ratios), ratios.items()):
            parts.append(f"<circle cx='{at(ratio):.1f}' cy='{y}' r='5' fill='{ink}' fill-opacity='.75'>"
                         f"<title>{html.escape(f'{label}, {WAYS[on]}: {ratio:.3f}')}</title></circle>")
    for i, (ink, name) in enumerate(zip(INKS, WAYS.values())):
        x = 60 + (90, 90 + 110, 90 + 170, 90 + 345)[i]
        parts.append(f"<circle cx='{x}' cy='{bottom + 38}' r='5' fill='{ink}' fill-opacity='.75'/>" +
                     text(x + 10, bottom + 42, name))
    return picture(660, bottom + 54, parts)


def smooth(values):
    return [sum(values[max(0, i + 1 - TAKEN_TOGETHER):i + 1]) / min(i + 1, TAKEN_TOGETHER) for i in range(len(values))]


def panel(x, y, title, series, width=180, height=110):
    """Lines of shares over time, each with its name."""
    parts = [text(x, y - 6, title, more="font-weight='bold'")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        level = y + height * (1 - share)
        parts.append(f"<line x1='{x}' x2='{x + width}' y1='{level:.1f}' y2='{level:.1f}' stroke='#ddd'/>")
        parts.append(text(x - 4, level + 4, f"{share:.0%}", "end", "font-size='9'"))
    for ink, (name, values) in zip(INKS, series.items()):
        step = width / max(1, len(values) - 2)
        # the last sample is a part of one
        points = " ".join(f"{x + i * step:.1f},{y + height * (1 - min(1, v)):.1f}"
                          for i, v in enumerate(smooth(values[:-1])))
        parts.append(f"<polyline points='{points}' fill='none' stroke='{ink}' "
                     f"stroke-width='1.5'><title>{html.escape(name)}</title></polyline>")
    return parts


def legend(x, y, names, step=120):
    return [f"<line x1='{x + step * i}' x2='{x + step * i + 18}' y1='{y - 4}' y2='{y - 4}' stroke='{ink}' "
            "stroke-width='3'/>" + text(x + step * i + 22, y, name)
            for i, (ink, name) in enumerate(zip(INKS, names))]


def series_of(results, row, case, on):
    """{name: shares over time} of a figure; nothing where it was not measured."""
    found = results.found.get(f"{row} {case} {on}")
    return {name.removesuffix(" series"): values
            for name, values in found.detail.items() if isinstance(values, list)} if found else {}


def sharing(results):
    """What each of several loads on one device gets of it over ten seconds."""
    parts = [text(40, 18, "what each of four unequal loads gets of one GPU, of what it gets alone; ten seconds, each "
                          "point half a second", more="font-weight='bold'")]
    four = {"driver's time slices": ("four loads, Jain", "slices"), "MPS": ("four loads, Jain", "mps"),
            "fargpu, fair": ("four loads, fair, Jain", "tcp"),
            "fargpu, fixed, 25% each": ("four loads, fixed, Jain", "tcp"),
            "fargpu, exclusive": ("four loads, exclusive, Jain", "tcp")}
    for i, (title, (case, on)) in enumerate(four.items()):
        parts += panel(40 + 215 * i, 50, title, series_of(results, "Q4", case, on))
    parts += legend(40, 184, LOADS)
    shares = ("10%", "25%", "50%", "75%")
    only = lambda found: next(iter(found.values()), [])  # noqa: E731
    parts += panel(40, 230, "fixed: a lease of",
                   {share: only(series_of(results, "Q2", f"{share}, 1 ms", "tcp")) for share in shares})
    parts += legend(40, 364, shares, 52)
    parts += panel(255, 230, "fair: weights 3 to 1", {"3": only(series_of(results, "Q4", "3:1, % off", "tcp"))})
    for i, (title, on) in enumerate({"8 equal: fargpu, fair": "tcp", "8 equal: time slices": "slices"}.items()):
        parts += panel(470 + 215 * i, 230, title, series_of(results, "Q4", "8 equal, Jain", on))
    ways = {"fargpu": "tcp", "time slices": "slices", "MPS": "mps"}
    parts += panel(900, 230, "best effort beside critical",
                   {name: only(series_of(results, "P2", "", on)) for name, on in ways.items()})
    parts += legend(885, 364, ways, 88)
    return picture(1120, 380, parts)


def models(results):
    """When each answer came of models that leave and return, and how many came by when; nothing if it was not
    measured."""
    found = {}
    for kind in ("warm", "after eviction"):
        series = series_of(results, "M7", f"{kind}, p50", "tcp")
        if not series:
            return ""
        found[kind] = list(zip(series["asked at"], series["answered after"]))
    left, other, top, height, width = 60, 480, 50, 220, 340
    every = [later for points in found.values() for _, later in points]
    low, high = (math.floor(math.log10(min(every))), math.ceil(math.log10(max(every))))
    end = max(moment for points in found.values() for moment, _ in points)
    part = lambda later: (math.log10(later) - low) / (high - low)  # noqa: E731
    parts = [text(left, 18, "eight models with together twice the memory there is: from a question to its answer",
                  more="font-weight='bold'"),
             text(left, top - 8, "each answer, over the time of the run"),
             text(other, top - 8, "part of the answers that have come by then")]
    for power in range(low, high + 1):
        at, name = part(10 ** power), f"{10 ** power:g} s" if power >= 0 else f"{10 ** (power + 3):g} ms"
        y, x = top + height * (1 - at), other + width * at
        parts.append(f"<line x1='{left}' x2='{left + width}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>" +
                     text(left - 6, y + 4, name, "end"))
        parts.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{top + height}' stroke='#ddd'/>" +
                     text(x, top + height + 16, name, "middle"))
    for seconds in (0, end):
        parts.append(text(left + width * seconds / end, top + height + 16, f"{seconds:.0f} s", "middle"))
    for share in (0, 0.5, 1):
        parts.append(text(other - 6, top + height * (1 - share) + 4, f"{share:.0%}", "end"))
    for ink, points in zip(INKS, found.values()):
        parts += [f"<circle cx='{left + width * moment / end:.1f}' cy='{top + height * (1 - part(later)):.1f}' r='3' "
                  f"fill='{ink}' fill-opacity='.7'/>" for moment, later in points]
        steps = " ".join(f"{other + width * part(later):.1f},{top + height * (1 - (i + 1) / len(points)):.1f}"
                         for i, later in enumerate(sorted(later for _, later in points)))
        parts.append(f"<polyline points='{steps}' fill='none' stroke='{ink}' stroke-width='2'/>")
    return picture(860, top + height + 60, parts + legend(left, top + height + 46, list(found), 180))


PICTURES = {"programs.svg": programs, "sharing.svg": sharing, "models.svg": models}
