"""Reads codegen/spec/*.toml, merges it with the headers and refuses whatever is undecided or contradictory.

The keys are described in codegen/README.md. Every complaint names file, function, parameter, rule and repair.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .header import Function, Header, Parameter, Type

MODES = ("deferred", "barrier", "cached")
CALL_KEYS = {"mode", "stream", "context", "client", "server", "why", "params", "aside", "as", "forgotten_by",
             "after_held", "waits_for", "records"}
OPERATION_KEYS = {"request", "reply", "mode", "stream", "context", "why", "aside", "forgotten_by", "after_held"}
STRUCT_KEYS = {"skip", "unions", "extents"}
OWNERS = ("client", "worker", "driver")
PARAMETER_KEYS = {"dir", "creates", "destroys", "count", "count_inout", "optional", "device", "extent", "ordinal", "known"}
LIST_KEYS = {"symbols", "why", "topic", "before_init", "error"}
CONTEXTS = ("current", "none", "optional")


class SpecError(Exception):
    """One or more complaints about the spec; each a line of its own."""


@dataclass
class Argument:
    """A parameter of a call that travels, with what the spec says of it."""

    name: str
    type: Type
    direction: str  # in, out, inout
    form: str  # scalar, address, handle, string, struct, array, status (see README)
    kind: str = ""  # handle kind
    creates: str = ""
    destroys: str = ""
    count: str = ""
    count_inout: str = ""
    optional: bool = False
    device: str = ""
    extent: str = ""
    ordinal: bool = False
    known: bool = False  # an object that comes out is one the session has already, or is not told
    counts: list[str] = field(default_factory=list)  # of an in-out count: the arrays it counts

    @property
    def field(self) -> str:
        return camel(self.name)

    @property
    def value(self) -> Type:
        """The type that travels: the pointee of outputs and arrays, else the type itself."""
        return self.type.element if self.form in ("struct", "array") or self.direction != "in" else self.type


@dataclass
class Call:
    function: Function
    group: str
    how: str  # generated, local, special, refused
    mode: str = ""
    why: str = ""
    topic: str = ""
    error: str = "NOT_SUPPORTED"
    before_init: bool = False
    unsafe_in_capture: bool = False  # refused while a stream is captured, unless the modes are relaxed
    context: str = "current"
    stream: str = ""
    client: str = "generated"  # generated or hand
    server: str = "generated"  # generated, hand or none (travels under another opcode)
    aside: bool = False
    travels_as: str = ""  # symbol of the call in whose shape this one travels
    after_held_wanted: bool = False
    waits_for: str = ""  # event whose held record holds this call too
    records: str = ""  # event that this call records
    forgotten_by: list[str] = field(default_factory=list)
    arguments: list[Argument] = field(default_factory=list)
    opcode: int = 0

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def travels(self) -> bool:
        return self.how in ("generated", "special") and bool(self.mode) and self.server != "none" and not self.travels_as

    @property
    def found_in(self) -> Argument | None:
        """The object in which handles that the call finds were found, and with which they go: a container, or one of its parts."""
        handles = [a for a in self.inputs if a.form == "handle"]
        containers = [a for a in handles if a.kind in ("graph", "library", "module")]
        return (containers or handles or [None])[0]

    @property
    def struct(self) -> str:
        return pascal(self.name)

    @property
    def inputs(self) -> list[Argument]:
        return [a for a in self.arguments if a.direction in ("in", "inout")]

    @property
    def outputs(self) -> list[Argument]:
        minted = self.mode == "deferred"
        return [a for a in self.arguments if a.direction in ("out", "inout") and not (minted and a.creates)]

    @property
    def minted(self) -> list[Argument]:
        """Handles that the client gives and the request therefore carries."""
        return [a for a in self.arguments if self.mode == "deferred" and a.creates]

    @property
    def after_held(self) -> bool:
        """It must not overtake work that the worker still holds back: it destroys what that work may need."""
        return self.after_held_wanted or any(a.destroys for a in self.arguments)

    @property
    def shape(self) -> str:
        """Changes whenever what travels changes; an opcode keeps its shape for ever."""
        text = ";".join(f"{a.name}:{a.direction}:{a.form}:{wire_type(a.value)}:{a.kind}" for a in self.arguments)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass
class Operation:
    name: str
    group: str
    request: str
    reply: str
    mode: str
    why: str
    stream: str = ""
    context: str = "current"
    aside: bool = False
    forgotten_by: list[str] = field(default_factory=list)
    after_held: bool = False
    opcode: int = 0


@dataclass
class Kind:
    name: str
    number: int
    type: str
    owner: str


@dataclass
class Leaf:
    """A field of a struct that travels."""

    path: str
    type: Type
    only_if: str = ""  # of a member of a union: what of the struct says that it is this member that counts
    kind: str = ""  # of a handle
    extent: str = ""  # of an address: bytes that are used from there, an expression over the struct's fields


@dataclass
class Struct:
    """A C struct that travels field by field: its leaves, nested structs and unions flattened."""

    name: str
    members: list[str]
    leaves: list[Leaf]

    @property
    def handles(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.kind]

    @property
    def addresses(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.extent]


@dataclass
class Spec:
    header: Header
    groups: list[str]
    calls: dict[str, Call]
    operations: dict[str, Operation]
    kinds: dict[str, Kind]
    structs: dict[str, Struct]
    attributes: dict[str, dict[str, Any]]
    launch_attributes: dict[str, dict[str, str]]
    hash: int

    def variants(self, call: Call) -> list[Function]:
        """The exported functions that a call stands for: itself and its per-thread twin."""
        return [f for f in self.header.functions.values() if f.plain == call.name]


def camel(name: str) -> str:
    parts = [p for p in re.split(r"[_.]", name) if p]
    joined = parts[0] + "".join(p[0].upper() + p[1:] for p in parts[1:])
    return joined[0].lower() + joined[1:]


def pascal(name: str) -> str:
    text = camel(name)
    return text[0].upper() + text[1:]


def wire_type(t: Type) -> str:
    """The Cap'n Proto type of a value."""
    if t.kind in ("address", "handle", "pointer"):
        return "UInt64"
    if t.kind == "enum":
        return "UInt32"
    if t.kind == "integer":
        return ("Int" if t.signed else "UInt") + str(t.bytes * 8)
    if t.kind == "float":
        return "Float" + str(t.bytes * 8)
    if t.kind == "struct":
        return "Structs." + pascal(t.name)
    if t.kind == "array":
        return "Data"
    raise SpecError(f"a value of kind {t.kind} ({t.spelling}) cannot travel; make the call special or refused")


class Loader:
    def __init__(self, header: Header, folder: Path):
        self.header = header
        self.folder = folder
        self.complaints: list[str] = []
        self.plain = {f.plain: header.functions[f.plain] for f in header.functions.values()}
        self.calls: dict[str, Call] = {}
        self.operations: dict[str, Operation] = {}
        self.struct_keys: dict[str, dict[str, Any]] = {}
        self.kinds: dict[str, Kind] = {}
        self.kind_by_type: dict[str, str] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        self.launch_attributes: dict[str, dict[str, str]] = {}
        self.unsafe_in_capture: list[tuple[str, str]] = []  # file, symbol

    def complain(self, file: str, where: str, rule: str, text: str) -> None:
        self.complaints.append(f"{file}: {where}: [{rule}] {text}")

    def load(self) -> Spec:
        handles = tomllib.loads((self.folder / "handles.toml").read_text())
        for name, entry in handles["kinds"].items():
            self.kinds[name] = Kind(name, entry["number"], entry["type"], entry["owner"])
            self.kind_by_type[entry["type"]] = name
            if entry["owner"] not in OWNERS:
                self.complain("handles.toml", name, "owner", f"owner must be one of {', '.join(OWNERS)}")
        numbers = [k.number for k in self.kinds.values()]
        if len(set(numbers)) != len(numbers) or max(numbers) > 63 or min(numbers) < 1:
            self.complain("handles.toml", "kinds", "kind-number", "numbers must be unique and within 1..63")
        groups = []
        for path in sorted(self.folder.glob("*.toml")):
            if path.name in ("handles.toml", "opcodes.toml"):
                continue
            groups.append(path.stem)
            self.read_group(path)
        for name in sorted(set(self.plain) - set(self.calls)):
            f = self.plain[name]
            self.complain(f.file, f"{name} (line {f.line})", "undecided",
                          "is neither generated, local, special nor refused; add it to a file of codegen/spec")
        for file, name in self.unsafe_in_capture:
            if name in self.calls:
                self.calls[name].unsafe_in_capture = True
            else:
                self.complain(file, f"capture, {name}", "unknown-name", "the toolkit exports no such symbol; remove or correct it")
        structs = self.collect_structs()
        self.check_creates()
        self.number_opcodes()
        if self.complaints:
            raise SpecError("\n".join(self.complaints))
        return Spec(self.header, groups, self.calls, self.operations, self.kinds, structs, self.attributes,
                    self.launch_attributes, self.fingerprint())

    # --- reading ----------------------------------------------------------------------------------------------

    def read_group(self, path: Path) -> None:
        try:
            data = tomllib.loads(path.read_text())
        except tomllib.TOMLDecodeError as error:
            raise SpecError(f"{path.name}: {error}") from error
        group = path.stem
        known = {"local", "special", "refused", "calls", "operations", "structs", "attributes", "launch_attributes", "capture"}
        for key in data.keys() - known:
            self.complain(path.name, key, "unknown-key", f"no such section; known are {', '.join(sorted(known))}")
        for how in ("local", "special", "refused"):
            for entry in data.get(how, []):
                self.read_list(path.name, group, how, entry)
        for name, entry in data.get("calls", {}).items():
            self.read_call(path.name, group, name, entry)
        for name, entry in data.get("operations", {}).items():
            self.read_operation(path.name, group, name, entry)
        for name, entry in data.get("structs", {}).items():
            for key in entry.keys() - STRUCT_KEYS:
                self.complain(path.name, f"struct {name}", "unknown-key", f"'{key}' means nothing here; known are {sorted(STRUCT_KEYS)}")
            self.struct_keys[name] = entry | {"file": path.name}
        self.unsafe_in_capture += [(path.name, name) for name in data.get("capture", {}).get("unsafe", [])]
        for name, entry in data.get("attributes", {}).items():
            if name not in self.header.enums["CUdevice_attribute"]:
                self.complain(path.name, name, "unknown-name", "is no device attribute of this toolkit")
            self.attributes[name] = entry
        for name, entry in data.get("launch_attributes", {}).items():
            if name not in self.header.enums["CUlaunchAttributeID"]:
                self.complain(path.name, name, "unknown-name", "is no launch attribute of this toolkit")
            self.launch_attributes[name] = entry

    def add(self, file: str, call: Call) -> None:
        if call.name in self.calls:
            self.complain(file, call.name, "twice", f"is decided already in {self.calls[call.name].group}.toml; "
                          "keep one of the two")
        self.calls[call.name] = call

    def read_list(self, file: str, group: str, how: str, entry: dict[str, Any]) -> None:
        where = f"[[{how}]] {', '.join(entry.get('symbols', [])[:2])}"
        for key in entry.keys() - LIST_KEYS:
            self.complain(file, where, "unknown-key", f"'{key}' means nothing here; known are {sorted(LIST_KEYS)}")
        why = entry.get("why", "")
        if how in ("special", "refused") and not why:
            self.complain(file, where, "reason", f"{how} calls need a reason: add why = \"...\"")
        if how != "refused" and not entry.get("topic"):
            self.complain(file, where, "topic", "name the file of the hand-written function: add topic = \"...\"")
        error = entry.get("error", "NOT_SUPPORTED")
        if "CUDA_ERROR_" + error not in self.header.enums["CUresult"]:
            self.complain(file, where, "unknown-name", f"CUDA_ERROR_{error} is no CUresult")
        for name in entry.get("symbols", []):
            if name not in self.plain:
                self.complain(file, name, "unknown-name", "the toolkit exports no such symbol; remove or correct it")
                continue
            self.add(file, Call(self.plain[name], group, how, why=why, topic=entry.get("topic", ""), error=error,
                                before_init=entry.get("before_init", False)))

    def read_call(self, file: str, group: str, name: str, entry: dict[str, Any]) -> None:
        if name not in self.plain:
            self.complain(file, name, "unknown-name", "the toolkit exports no such symbol; remove or correct it")
            return
        for key in entry.keys() - CALL_KEYS:
            self.complain(file, name, "unknown-key", f"'{key}' means nothing here; known are {sorted(CALL_KEYS)}")
        by_hand = entry.get("client", "generated") != "generated" or entry.get("server", "generated") != "generated"
        call = Call(self.plain[name], group, "special" if by_hand else "generated", mode=entry.get("mode", ""),
                    why=entry.get("why", ""), context=entry.get("context", "current"), stream=entry.get("stream", ""),
                    client=entry.get("client", "generated"), server=entry.get("server", "generated"),
                    aside=entry.get("aside", False), travels_as=entry.get("as", ""),
                    after_held_wanted=entry.get("after_held", False), waits_for=entry.get("waits_for", ""),
                    records=entry.get("records", ""),
                    forgotten_by=entry.get("forgotten_by", []))
        self.add(file, call)
        if call.travels_as:
            return  # its twin is checked
        if call.mode not in MODES:
            self.complain(file, name, "mode", f"mode must be one of {', '.join(MODES)}")
        if by_hand and not call.why:
            self.complain(file, name, "reason", "is served by hand and needs a reason: add why = \"...\"")
        if call.context not in CONTEXTS:
            self.complain(file, name, "context", f"context must be one of {', '.join(CONTEXTS)}")
        names = {p.name for p in call.function.parameters}
        for key in ("stream", "waits_for", "records"):
            if getattr(call, key) and getattr(call, key) not in names:
                self.complain(file, name, "unknown-name", f"{key} '{getattr(call, key)}' is no parameter")
        annotations = entry.get("params", {})
        for parameter in annotations.keys() - names:
            self.complain(file, f"{name}, parameter {parameter}", "unknown-name", "there is no such parameter")
        if call.server == "none":
            return  # travels under another opcode, through hand-written code
        counts = {notes["count_inout"] for notes in annotations.values() if "count_inout" in notes}
        for p in call.function.parameters:
            if p.name in counts:  # says how much there is room for, then how much there was
                counted = [n for n, notes in annotations.items() if notes.get("count_inout") == p.name]
                call.arguments.append(Argument(p.name, p.type, "inout", "status", counts=counted))
            else:
                self.read_parameter(file, call, p, annotations.get(p.name, {}), names)
        if call.mode == "deferred" and call.outputs:
            self.complain(file, name, "deferred", f"a deferred call cannot return '{call.outputs[0].name}'; "
                          "make it a barrier, or the output a handle that the client creates")

    def read_parameter(self, file: str, call: Call, p: Parameter, notes: dict[str, Any], names: set[str]) -> None:
        where = f"{call.name}, parameter {p.name} ({p.type.spelling})"
        for key in notes.keys() - PARAMETER_KEYS:
            self.complain(file, where, "unknown-key", f"'{key}' means nothing; known are {sorted(PARAMETER_KEYS)}")
        for key in ("count", "count_inout"):
            for word in re.findall(r"[A-Za-z_]\w*", notes.get(key, "")):
                if word not in names:
                    self.complain(file, where, "unknown-name", f"{key} names '{word}', which is no parameter")
        t = p.type
        a = Argument(p.name, t, notes.get("dir", "in"), "scalar",
                     **{k: notes[k] for k in PARAMETER_KEYS - {"dir"} if k in notes})
        if notes.get("device") == "use" and not notes.get("extent"):
            self.complain(file, where, "extent", "an address that is used needs its extent in bytes")
        if t.kind in ("integer", "enum", "float"):
            pass
        elif t.kind == "address":
            a.form = "address"
        elif t.kind == "handle":
            a.form, a.kind = "handle", self.kind_of(file, where, t)
        elif t.kind == "pointer" and notes.get("device") == "value":
            a.form = "address"
        elif t.kind == "pointer" and t.element.const and t.element.kind == "integer" and t.element.spelling.endswith("char") \
                and "count" not in notes:
            a.form = "string"
        elif t.kind == "pointer" and t.element.kind not in ("void", "function", "union", "pointer"):
            if not t.element.const and "dir" not in notes:
                self.complain(file, where, "direction", "a pointer to non-const may go either way: add "
                              "dir = \"in\", \"out\" or \"inout\"")
            if t.element.kind == "handle":
                a.kind = self.kind_of(file, where, t.element)
            if a.count or a.count_inout:
                a.form = "array"
            elif t.element.kind == "struct":
                a.form = "struct"
            elif a.direction == "in":
                self.complain(file, where, "count", "an input pointer to scalars needs count = \"...\"")
        else:
            self.complain(file, where, "kind", f"the generator cannot carry a {t.kind} of this type; serve the call by hand "
                          "(client and server = \"hand\" with operations) or refuse it")
        call.arguments.append(a)

    def kind_of(self, file: str, where: str, t: Type) -> str:
        if t.name not in self.kind_by_type:
            self.complain(file, where, "kind", f"handles of type {t.name} have no kind; add one to handles.toml")
        return self.kind_by_type.get(t.name, "")

    def read_operation(self, file: str, group: str, name: str, entry: dict[str, Any]) -> None:
        for key in entry.keys() - OPERATION_KEYS:
            self.complain(file, name, "unknown-key", f"'{key}' means nothing; known are {sorted(OPERATION_KEYS)}")
        if not entry.get("why"):
            self.complain(file, name, "reason", "an operation is hand-written and needs a reason: add why = \"...\"")
        if entry.get("mode") not in MODES:
            self.complain(file, name, "mode", f"mode must be one of {', '.join(MODES)}")
        self.operations[name] = Operation(name, group, entry.get("request", ""), entry.get("reply", ""),
                                          entry.get("mode", ""), entry.get("why", ""), entry.get("stream", ""),
                                          entry.get("context", "current"), entry.get("aside", False),
                                          entry.get("forgotten_by", []), entry.get("after_held", False))

    # --- what must hold over the whole spec ----------------------------------------------------------------------

    def collect_structs(self) -> dict[str, Struct]:
        structs: dict[str, Struct] = {}
        for call in self.calls.values():
            for a in call.arguments:
                t = a.value
                if t.kind == "struct" and t.name not in structs:
                    structs[t.name] = Struct(t.name, [m.name for m in t.members], self.leaves(t, t.name))
                    self.check_struct(structs[t.name], f"{call.group}.toml")
        return structs

    def leaves(self, t: Type, struct: str, prefix: str = "", only_if: str = "") -> list[Leaf]:
        keys = self.struct_keys.get(struct, {})
        found: list[Leaf] = []
        for m in t.members:
            path, type = prefix + m.name, m.type
            if path in keys.get("skip", {}):
                continue
            if type.kind == "struct":
                found += self.leaves(type, struct, path + ".", only_if)
            elif type.kind == "union" and path in keys.get("unions", {}):
                union = keys["unions"][path]
                for name in union.keys() - {"by"} - {member.name for member in type.members}:
                    self.complain(keys["file"], f"struct {struct}, union {path}", "unknown-name", f"it has no member '{name}'")
                for member in type.members:
                    if member.name not in union:  # never counts
                        continue
                    condition = f"s.{union['by']} == {union[member.name]}"
                    found += self.leaves(Type("struct", "", members=(member,)), struct, path + ".",
                                         f"{only_if} && {condition}" if only_if else condition)
            elif type.kind == "handle":
                where = f"struct {struct}, field {path}"
                found.append(Leaf(path, type, only_if, kind=self.kind_of(keys.get("file", ""), where, type)))
            elif type.kind in ("integer", "enum", "float", "address") or \
                    (type.kind == "array" and type.element.kind in ("integer", "enum", "float")):
                found.append(Leaf(path, type, only_if, extent=keys.get("extents", {}).get(path, "")))
            else:
                self.complain(keys.get("file", "codegen/spec"), f"struct {struct}, field {path} ({type.spelling})", "kind",
                              "cannot travel by itself; add it to skip, with the reason, say under unions which member counts, "
                              "or serve the call by hand")
        return found

    def check_struct(self, struct: Struct, file: str) -> None:
        keys = self.struct_keys.get(struct.name, {})
        file = keys.get("file", file)
        paths = {leaf.path for leaf in struct.leaves}
        for path in keys.get("extents", {}).keys() - paths:
            self.complain(file, f"struct {struct.name}, extent of {path}", "unknown-name", "there is no such field that travels")
        for path, union in keys.get("unions", {}).items():
            if union.get("by") not in paths:
                self.complain(file, f"struct {struct.name}, union {path}", "unknown-name",
                              f"by names '{union.get('by')}', which is no field that travels")
        for leaf in struct.leaves:
            if leaf.type.kind == "address" and not leaf.extent:
                self.complain(file, f"struct {struct.name}, field {leaf.path}", "extent",
                              "an address that is used needs its extent in bytes: add it to extents")

    def check_creates(self) -> None:
        destroyed = {a.destroys for c in self.calls.values() for a in c.arguments if a.destroys}
        for call in self.calls.values():
            for a in call.arguments:
                for kind in filter(None, (a.creates, a.destroys)):
                    if kind not in self.kinds:
                        self.complain(f"{call.group}.toml", f"{call.name}, parameter {a.name}", "unknown-name",
                                      f"'{kind}' is no handle kind")
                if a.creates and a.creates not in destroyed:
                    self.complain(f"{call.group}.toml", f"{call.name}, parameter {a.name}", "destroyer",
                                  f"creates a {a.creates}, but no call destroys one")
        for call in self.calls.values():
            if call.travels_as and call.travels_as not in self.calls:
                self.complain(f"{call.group}.toml", call.name, "unknown-name", f"as = '{call.travels_as}' is no call")
            for name in call.forgotten_by:
                if name not in self.calls and name not in self.operations:
                    self.complain(f"{call.group}.toml", call.name, "unknown-name",
                                  f"forgotten_by names '{name}', which is neither call nor operation")

    def number_opcodes(self) -> None:
        file = "opcodes.toml"
        register = tomllib.loads((self.folder / file).read_text()) if (self.folder / file).exists() else {}
        entries = register.get("opcodes", {})
        for expected, (name, entry) in enumerate(entries.items(), 1):
            if entry["number"] != expected:
                self.complain(file, name, "opcode", f"has number {entry['number']} where {expected} belongs; opcodes are "
                              "appended, never moved, removed or reused: restore the register")
                return
        for name, call in self.calls.items():
            if not call.travels:
                continue
            if name not in entries:
                self.complain(file, name, "opcode", "has no opcode; run: codegen/register")
            elif entries[name]["shape"] != call.shape:
                self.complain(file, name, "opcode", f"travels in another shape ({call.shape}) than its opcode "
                              f"{entries[name]['number']} was given for ({entries[name]['shape']}); restore the annotations, "
                              "or give it a new opcode with: codegen/register --renew " + name)
            else:
                call.opcode = entries[name]["number"]
        for name, operation in self.operations.items():
            if name not in entries:
                self.complain(file, name, "opcode", "has no opcode; run: codegen/register")
            else:
                operation.opcode = entries[name]["number"]

    def fingerprint(self) -> int:
        text = "\n".join(sorted([f"{c.opcode} {c.name} {c.shape}" for c in self.calls.values() if c.travels] +
                                [f"{o.opcode} {o.name}" for o in self.operations.values()]))
        return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


def load(header: Header, folder: Path) -> Spec:
    return Loader(header, folder).load()
