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


PICTURES = {"programs.svg": programs, "sharing.svg": sharing}
