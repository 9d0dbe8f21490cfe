"""What a line of FARGPU_LOG=trace has to know of the parameters of calls: names, kinds, values of enums, and fields of
structs, as tables without pointers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .header import Parameter, Type
from .spec import Call, Spec

# The spec says of the calls that travel which pointers are lists, and the headers say it of none. Of other calls it
# shows in the names: those of lists end in "s", "Array", "List" or "map". A list is not read where its length is
# unknown, which may be 0.
# Structs that come as lists under other names:
LISTED_STRUCTS = {"CUgraphEdgeData", "CUmemAccessDesc"}
# Places for one value under names that end as those of lists do:
SINGLE = {"flags", "pFlags", "bytes", "status", "symbolStatus", "captureStatus"}
# Lists under names that do not:
LISTED = {"extra", "data"}


@dataclass
class Row:
    """A parameter of a call, or a field of a struct."""

    name: int  # where it begins among the words
    value: str  # enumerator of Value
    bytes: int
    which: int = 0  # of names: their enum; of records: their struct
    place: str = "itself"  # enumerator of Place
    count: int = -1  # of a list: the parameter with its length
    path: str = ""  # of a field


@dataclass
class Tables:
    words: list[str] = field(default_factory=list)
    calls: dict[str, list[Row]] = field(default_factory=dict)  # by function
    enums: list[tuple[str, list[tuple[int, int]]]] = field(default_factory=list)  # values and where names begin
    structs: list[tuple[str, list[Row]]] = field(default_factory=list)


class Builder:
    def __init__(self, spec: Spec):
        self.spec = spec
        self.tables = Tables()
        self.offsets: dict[str, int] = {}
        self.end = 0
        self.enums: dict[str, int] = {}
        self.structs: dict[str, int] = {}

    def build(self) -> Tables:
        for name in sorted(self.spec.header.functions):
            function = self.spec.header.functions[name]
            call = self.spec.calls[function.plain]
            self.tables.calls[name] = [self.parameter(call, p) for p in function.parameters]
        return self.tables

    def word(self, text: str) -> int:
        if text not in self.offsets:
            self.offsets[text] = self.end
            self.tables.words.append(text)
            self.end += len(text) + 1
        return self.offsets[text]

    def enum(self, name: str) -> int:
        if name not in self.enums:
            self.enums[name] = len(self.tables.enums)
            first: dict[int, str] = {}
            for text, value in self.spec.header.enums[name].items():
                first.setdefault(value, text)
            self.tables.enums.append((name, [(v, self.word(t)) for v, t in sorted(first.items())]))
        return self.enums[name]

    def struct(self, t: Type) -> int:
        if t.name not in self.structs:
            self.structs[t.name] = len(self.tables.structs)
            self.tables.structs.append((t.name, list(self.fields(t, ""))))
        return self.structs[t.name]

    def fields(self, t: Type, prefix: str):
        for m in t.members:
            if not m.name or m.name.startswith("reserved"):
                continue
            if m.type.kind == "struct":
                yield from self.fields(m.type, prefix + m.name + ".")
            elif (row := self.value(m.name, m.type)) is not None:
                row.path = prefix + m.name
                row.name = self.word(row.path)
                yield row

    def value(self, name: str, t: Type) -> Row | None:
        """What stands in a value itself; None for what is not shown."""
        row = Row(self.word(name), "address", 8)
        if t.kind == "handle":
            row.value = {"CUstream": "stream", "CUfunction": "function", "CUkernel": "function"}.get(t.name, "address")
        elif t.kind == "enum":
            row.value, row.bytes = "integer", 4
            if t.name in self.spec.header.enums:
                row.value, row.which = "name", self.enum(t.name)
        elif t.kind == "integer" and t.spelling == "CUdeviceptr_v1":
            row.bytes = t.bytes
        elif t.kind == "integer":
            row.value, row.bytes = "integer" if t.signed else "number", t.bytes
        elif t.kind == "float":
            row.value, row.bytes = "real", t.bytes
        elif t.kind == "pointer" and t.element.kind == "integer" and t.element.const and t.element.bytes == 1:
            row.value = "text"
        elif t.kind not in ("address", "pointer", "function"):
            return None
        return row

    def parameter(self, call: Call, p: Parameter) -> Row:
        t = p.type
        if t.kind in ("struct", "array"):  # the trace is given its address
            return self.pointee(call, p, t, "in")
        if t.kind == "pointer" and not (t.element.kind == "integer" and t.element.const and t.element.bytes == 1):
            return self.pointee(call, p, t.element, "in" if t.element.const else "out")
        return self.value(p.name, t)

    def pointee(self, call: Call, p: Parameter, t: Type, place: str) -> Row:
        address = Row(self.word(p.name), "address", 8)
        known = next((a for a in call.arguments if a.name == p.name), None)
        if t.kind in ("void", "union", "array") or (place == "out" and t.kind == "struct"):
            return address
        if t.kind == "integer" and t.bytes == 1:  # room for a text
            return address
        if t.kind == "pointer" and t.element.kind not in ("void", "integer"):
            return address
        names = [q.name for q in call.function.parameters]
        count = -1
        if known is not None and known.form == "array":
            if known.count not in names or known.direction != "in" or t.kind == "struct":
                return address
            count = names.index(known.count)
        elif known is None and (t.name in LISTED_STRUCTS or self.looks_like_list(p.name, t)):
            return address
        if t.kind == "struct":
            return Row(address.name, "record", 0, self.struct(t), place)
        row = self.value(p.name, t)
        row.place, row.count = place, count
        return row

    @staticmethod
    def looks_like_list(name: str, t: Type) -> bool:
        plain = name.removesuffix("_out")
        if plain in LISTED or plain.endswith(("Array", "List", "map")) and not re.match("p[A-Z]", plain):
            return True
        if t.kind == "struct" or plain in SINGLE or plain.startswith(("num", "nb")):
            return False
        return plain.endswith("s")


def tables(spec: Spec) -> Tables:
    return Builder(spec).build()
