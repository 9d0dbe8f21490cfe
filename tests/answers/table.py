"""Makes the table of calls that the program `answers` interprets: table.py OUT INCLUDE

From CUDA's headers come the types, from codegen/spec what is served, from calls.toml what a right call is given."""

import re
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "codegen"))

from fargpu_codegen import header as headers, spec as specs  # noqa: E402

# What is given by position or by meaning and gone afterwards, if the call succeeds.
ENDS = re.compile(r"Destroy|Unload|Release|Free(?!NodeGet)|Unregister|Detach|Close|Unmap|PopCurrent|CtxReset(?!Pers)")
SCALAR_OUT = 8  # elements of an output for which there is room


def spelled(t):
    """A type as calls.toml names it."""
    if t.kind == "pointer":
        return ("const " if t.element.const else "") + spelled(t.element) + "*"
    return re.sub(r"^const ", "", t.name or t.spelling)


def role_of(name, t):
    if t.kind == "handle" or t.kind == "function":
        return t.kind
    if t.kind == "address":
        return "address"
    if t.kind == "enum":
        return "choice"
    if t.kind == "float":
        return "real"
    if t.kind in ("struct", "union"):
        return "record"
    if t.kind == "pointer":
        return "text" if spelled(t) == "const char*" else "pointer"
    if t.kind == "integer":
        if t.spelling == "CUdevice":
            return "device"
        if re.search(r"flags", name, re.I):
            return "flags"
        return "size" if t.spelling == "size_t" else "integer"
    return "other"


class Table:
    def __init__(self, include):
        self.header = headers.read(include)
        self.spec = specs.load(self.header, ROOT / "codegen" / "spec")
        self.said = tomllib.loads((HERE / "calls.toml").read_text())
        self.lines = []
        self.enums = {}
        self.records = {}
        self.used = set()

    def choices(self, t):
        """The name and the length of the list of an enumeration's values."""
        values = self.header.enums.get(t.name, {})
        if not values:
            return "nullptr", 0
        if t.name not in self.enums:
            # What ends a list, or stands for nothing, is no choice of its own.
            found = sorted({v for n, v in values.items() if not re.search(r"_(MAX|FORCE_UINT)$|_MAX_ENUM$", n)})
            self.enums[t.name] = (f"choices_{t.name}", len(found))
            self.lines.append(f"const std::int64_t choices_{t.name}[] = {{{', '.join(f'{v}ll' for v in found)}}};")
        return self.enums[t.name]

    def leaves(self, t, path=""):
        """(where it lies, its name, type) of each field, nested ones too. A union is one field."""
        for member in t.members:
            name = f"{path}.{member.name}" if path and member.name else path or member.name
            m = member.type
            if m.kind == "struct":
                yield from self.leaves(m, name)
            elif m.kind == "union" and not member.name:
                first = m.members[0].name
                yield f"{path}.{first}" if path else first, "union", m
            elif m.kind == "array" and m.element.kind != "integer":
                continue
            elif name:
                yield name, name, m

    def fields(self, t):
        if t.kind != "struct" or not t.name:
            return "nullptr", 0
        if t.name not in self.records:
            rows = []
            for path, name_told, m in self.leaves(t):
                if name_told.split(".")[-1].startswith("_"):
                    continue  # nobody's
                name, count = self.choices(m) if m.kind == "enum" else ("nullptr", 0)
                size = m.bytes or 8
                rows.append(f'    {{"{name_told}", Role::{role_of(path, m)}, {str(m.signed).lower()}, '
                            f"offsetof({t.name}, {path}), {size}, {name}, {count}}},")
            self.records[t.name] = (f"fields_{t.name}", len(rows))
            if rows:
                self.lines.append(f"const Field fields_{t.name}[] = {{")
                self.lines += rows + ["};"]
            else:
                self.records[t.name] = ("nullptr", 0)
        return self.records[t.name]

    def fixture(self, symbol, p, role):
        """What a right call gives for a parameter."""
        own = self.said["symbols"].get(symbol, {})
        if p.name in own:
            self.used.add(("symbols", symbol))
            return own[p.name]
        for key in (f"{spelled(p.type)} {p.name}", p.name):
            if key in self.said["names"]:
                self.used.add(("names", key))
                return self.said["names"][key]
        if spelled(p.type) in self.said["types"]:
            self.used.add(("types", spelled(p.type)))
            return self.said["types"][spelled(p.type)]
        if role in ("flags", "device", "real"):
            return 0
        if role == "choice":
            return min(v for v in self.header.enums[p.type.name].values())
        if role in ("integer", "size"):
            return 1
        if role == "pointer" and not p.type.element.const:
            return "out"
        raise SystemExit(f"calls.toml: {symbol}: nothing is said for {spelled(p.type)} {p.name}")

    def parameter(self, call, symbol, p):
        role = role_of(p.name, p.type)
        fixture = self.fixture(symbol, p, role)
        name, count = self.choices(p.type) if role == "choice" else ("nullptr", 0)
        element, element_signed, element_bytes, fields, field_count = "other", False, 0, "nullptr", 0
        if p.type.kind == "pointer":
            t = p.type.element
            element, element_signed, element_bytes = role_of(p.name, t), t.signed, t.bytes
            if t.kind == "struct":
                fields, field_count = self.fields(t)
            if t.kind == "integer" and t.bytes == 1:
                element = "other" if t.spelling == "unsigned char" else "text"
            if t.kind in ("pointer", "handle", "address", "function"):
                element_bytes = 8
            if t.kind == "pointer" and t.element.kind == "integer" and t.element.bytes == 1:
                element = "text"
            if element == "flags":
                element = "integer"
        own = self.said["symbols"].get(symbol, {})
        masked = p.name in own.get("masked", []) or p.name in self.said["masked"]
        kept = p.name in own.get("kept", [])
        known = {q.name for q in call.function.parameters} | {"masked", "masked_cases", "kept", "more", "alone"}
        for key in own.keys() - known:
            raise SystemExit(f"calls.toml: {symbol}: no parameter is named {key}")
        size = p.type.bytes if p.type.kind not in ("pointer", "handle", "function", "address") else 8

        def flag(v):
            return "true" if v else "false"
        return (f'    {{"{p.name}", Role::{role}, {flag(p.type.signed)}, {size}, {name}, {count}, Role::{element}, '
                f'{flag(element_signed)}, {element_bytes}, {fields}, {field_count}, "{fixture}", {flag(masked)}, '
                f"{flag(kept)}}},")

    def write(self, out):
        rows = []
        for symbol in sorted(self.spec.calls):
            call = self.spec.calls[symbol]
            if call.how == "refused" or symbol in self.said["left_out"]:
                continue
            own = self.said["symbols"].get(symbol, {})
            parameters = [self.parameter(call, symbol, p) for p in call.function.parameters]
            if parameters:
                self.lines += [f"const Parameter parameters_{symbol}[] = {{", *parameters, "};"]
            more = [f"{key}={value}" for key, values in own.get("more", {}).items() for value in values]
            if more:
                quoted = ", ".join(f'"{m}"' for m in more)
                self.lines.append(f"const char* const more_{symbol}[] = {{{quoted}, nullptr}};")
            masked = "nullptr"
            if own.get("masked_cases"):
                masked = f"masked_{symbol}"
                quoted = ", ".join(f'"{m}"' for m in own["masked_cases"])
                self.lines.append(f"const char* const {masked}[] = {{{quoted}, nullptr}};")
            for f in sorted(self.spec.variants(call), key=lambda f: f.name):
                rows.append(f'    {{"{f.name}", "{call.group}", '
                            f"{f'parameters_{symbol}' if parameters else 'nullptr'}, {len(parameters)}, "
                            f"{f'more_{symbol}' if more else 'nullptr'}, {masked}, {str(f.name != symbol).lower()}, "
                            f"{str(bool(ENDS.search(symbol))).lower()}, {str(own.get('alone', False)).lower()}, "
                            f"&Invoke<decltype(&::{f.name})>::run}},")
        for section in ("names", "types"):
            for key in self.said[section]:
                if (section, key) not in self.used:
                    raise SystemExit(f"calls.toml: [{section}]: nothing is named {key}")
        for symbol in self.said["symbols"]:
            if symbol not in self.spec.calls:
                raise SystemExit(f"calls.toml: there is no call {symbol}")
        text = ["// Made by table.py; not to be edited.", "#define __CUDA_API_VERSION_INTERNAL 1", "#include <cuda.h>",
                "#include <cudaProfiler.h>", "", '#include "call.h"', "", "namespace answers {", "namespace {",
                *self.lines, "}  // namespace", "const Call calls[] = {", *rows, "};",
                "const std::size_t call_count = sizeof calls / sizeof calls[0];", "}  // namespace answers", ""]
        out.write_text("\n".join(text))


if __name__ == "__main__":
    Table(Path(sys.argv[2])).write(Path(sys.argv[1]))
