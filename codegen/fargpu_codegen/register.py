"""Appends to codegen/spec/opcodes.toml: new calls and operations get the next numbers. Nothing is ever moved or
reused."""

from __future__ import annotations

from pathlib import Path

from .header import Header
from .spec import Loader, SpecError, read_toml

HEAD = """\
# Opcodes: append-only. Written by codegen/register; a number once given keeps its meaning and its shape for ever.
# `shape` is a fingerprint of what travels. An entry named "name~N" is a shape given up in favour of a later one.
[opcodes]
"""


def update(header: Header, folder: Path, renew: set[str]) -> list[str]:
    """Returns the names that got a number."""
    path = folder / "opcodes.toml"
    entries = read_toml(path).get("opcodes", {}) if path.exists() else {}
    for name in sorted(renew):
        if name not in entries:
            raise SpecError(f"{path.name}: {name}: [opcode] has no opcode that could be renewed; correct the name "
                            "given to --renew")
        entries = {(f"{n}~{e['number']}" if n == name else n): e for n, e in entries.items()}
    loader = Loader(header, folder)
    loader.number_opcodes = lambda: None  # it is this function's result that the rule checks
    spec = loader.load()
    added = []
    wanted = {c.name: c.shape for c in spec.calls.values() if c.travels} | {o: "by hand" for o in spec.operations}
    for name in sorted(wanted.keys() - entries.keys()):
        entries[name] = {"number": len(entries) + 1, "shape": wanted[name]}
        added.append(name)
    lines = [f'"{n}" = {{ number = {e["number"]}, shape = "{e["shape"]}" }}\n' for n, e in entries.items()]
    path.write_text(HEAD + "".join(lines))
    return added
