"""Which tests name which symbols: the last column of the coverage table."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = {".cpp", ".cu", ".h", ".py"}
# Folders that name functions without calling them, or call every function alike.
TOOLS = {"codegen", "fake_driver", "abi", "answers"}
# Where a name means the function of that name; elsewhere cuda.h gives some names another meaning.
EXACT = {"unit", "wire"}
EXACT_MARK = "#define __CUDA_API_VERSION_INTERNAL"


def meanings(include: Path) -> dict[str, str]:
    """What cuda.h makes of names: cuMemAlloc means cuMemAlloc_v2."""
    text = (include / "cuda.h").read_text()
    return dict(re.findall(r"^\s*#\s*define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_PT[DS][SZ]\()?(cu[A-Z]\w*)", text, re.M))


def touched(folder: Path, include: Path) -> dict[str, set[str]]:
    """By symbol: the test folders in which it is named."""
    meaning = meanings(include)
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder).parts[0]
        if path.suffix not in SOURCES or place in TOOLS:
            continue
        text = path.read_text(errors="replace")
        exact = place in EXACT or EXACT_MARK in text
        for name in set(re.findall(r"\bcu[A-Z]\w*", text)):
            found.setdefault(name if exact else meaning.get(name, name), set()).add(place)
    return found
