"""Reads codegen/spec/*.toml, merges it with the headers and refuses whatever is undecided or contradictory.

The keys are described in docs/internals/generator.md. Every complaint names file, function, parameter, rule and repair.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .header import Function, Header, Parameter, Type

MODES = ("deferred", "barrier", "cached", "either")
CALL_KEYS = {"mode", "stream", "context", "client", "server", "why", "params", "aside", "as", "forgotten_by",
             "after_held", "waits_for", "records", "turn", "room", "driver_room", "launches", "alike", "crew", "checks",
             "asks", "names_memory", "releases"}
CALL_FIELDS = CALL_KEYS - {"as", "after_held", "params", "checks"}  # those that Call has by the name of their key
OPERATION_KEYS = {"request", "reply", "mode", "stream", "context", "why", "forgotten_by", "after_held", "turn", "alike",
                  "crew", "asks", "names_memory", "driver_room",
                  "attributes", "taken_for_done", "passes_functions", "staged", "dropped", "handles", "held"}
STRUCT_KEYS = {"skip", "unions", "extents"}
OWNERS = ("client", "worker", "driver")
LIVES_WITH = ("session", "context")
PARAMETER_KEYS = {"dir", "creates", "destroys", "count", "count_inout", "optional", "missing", "device", "extent",
                  "aligned", "range", "ordinal", "known"}
NARROW_KEYS = {"to", "undo"}
LIST_KEYS = {"symbols", "why", "topic", "before_init", "error"}
CONTEXTS = ("current", "none", "optional")
CREW = ("always", "awaited")
DIRECTIONS = ("in", "out", "inout")
CHECKS_MIN = 2  # calls that a check of the worker must serve to be named in the spec
FORMS_MIN = 3  # calls that a function of the client must serve to be named in the spec
# that arguments of forms may use besides parameters and constants of CUDA
WORDS = {"nullptr", "true", "false", "thread"}
SCALARS = ("integer", "enum", "float")


class SpecError(Exception):
    """One or more complaints about the spec; each a line of its own."""


@dataclass
class Argument:
    """A parameter of a call that travels, with what the spec says of it."""

    name: str
    type: Type
    direction: str  # in, out, inout
    form: str  # scalar, address, handle, string, struct, array, status (see docs/internals/generator.md)
    kind: str = ""  # handle kind
    creates: str = ""
    destroys: str = ""
    count: str = ""
    count_inout: str = ""
    optional: bool = False
    missing: str = "CUDA_ERROR_INVALID_VALUE"  # the error where the program gives no place for an output
    device: str = ""
    extent: str = ""
    aligned: int = 1
    range: tuple[int, int] | None = None  # the least and the most that it may be
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
class Narrowed:
    """A parameter of a 32-bit call, beside the one of its 64-bit call."""

    name: str
    wide: Type
    form: str  # same (or widened by the language), size, address, struct_in, struct_out

    @property
    def members(self) -> list[str]:
        return [m.name for m in self.wide.element.members]


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
    cleared: list[str] = field(default_factory=list)  # outputs that are zero where the call fails
    context: str = "current"
    stream: str = ""
    client: str = "generated"  # generated or hand
    server: str = "generated"  # generated, hand or none (travels under another opcode)
    aside: bool = False
    travels_as: str = ""  # symbol of the call in whose shape this one travels
    after_held_said: bool | None = None
    waits_for: str = ""  # event whose held record holds this call too
    records: str = ""  # event that this call records
    turn: bool = False  # it gives the GPU work, for which the session needs its turn
    launches: str = ""  # executable graph that this call launches
    # parameters: calls in which they are equal take the GPU about as long
    alike: list[str] = field(default_factory=list)
    crew: str = ""  # served while launches are with the launch crew: always, or where the answer is awaited
    asks: bool = False  # it gives the GPU nothing, and needs no memory of it
    names_memory: bool = False  # it uses no device memory but at the addresses that it is given
    # functions of the worker, and the parameters that they are given
    checks: list[tuple[str, str]] = field(default_factory=list)
    room: bool = False  # it takes memory of the GPU: what the client keeps there for reuse makes room for it
    driver_room: bool = False  # the driver may take memory of the GPU for it by itself
    releases: bool = False  # an object may be gone after it, and nothing that is held back may need that
    forgotten_by: list[str] = field(default_factory=list)
    narrows: str = ""  # symbol of the 64-bit call of which this one has the 32-bit form
    undo: str = ""  # symbol of the call that gives back what the 64-bit call answered, when that does not fit
    narrowed: list[Narrowed] = field(default_factory=list)
    form_of: str = ""  # function of the client, or symbol of another call, of which this one is a form
    form_arguments: str = ""  # what that is called with: expressions over parameters
    arguments: list[Argument] = field(default_factory=list)
    shape: str = ""  # a fingerprint that changes whenever what travels changes; an opcode keeps its shape for ever
    opcode: int = 0

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def by_hand(self) -> bool:
        """The client has a function for it."""
        return not self.form_of and (self.how == "local" or self.how == "special"
                                     and (self.client == "hand" or not self.mode))

    @property
    def own_stream(self) -> bool:
        return any(p.type.name == "CUstream" for p in self.function.parameters)

    @property
    def travels(self) -> bool:
        return self.how in ("generated",
                            "special") and bool(self.mode) and self.server != "none" and not self.travels_as

    @property
    def may_defer(self) -> bool:
        return self.mode in ("deferred", "either")

    @property
    def found_in(self) -> Argument | None:
        """The object in which handles that the call finds were found, and with which they go: a container, or one of
        its parts."""
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
    def memory(self) -> list[Argument]:
        """Addresses that the GPU is to use."""
        return [a for a in self.inputs if a.device == "use"]

    @property
    def memory_inputs(self) -> list[Argument]:
        """Those, and what their extents are about."""
        names = {name for a in self.memory for name in [a.name, *names_in(a.extent)]}
        return [a for a in self.inputs if a.name in names]

    @property
    def outputs(self) -> list[Argument]:
        return [a for a in self.arguments if a.direction in ("out", "inout") and a not in self.minted]

    @property
    def looked_up(self) -> list[tuple[str, str, str]]:
        """Handles that come in: parameter, field and kind."""
        return [(a.name, a.field, a.kind) for a in self.inputs if a.form == "handle" and a not in self.minted]

    @property
    def subject(self) -> Argument | None:
        """The function that a kept answer tells of: such answers are forgotten function by function."""
        asked = [a for a in self.inputs if self.mode == "cached" and a.form == "handle" and a.kind == "function"]
        return (asked or [None])[0]

    @property
    def minted(self) -> list[Argument]:
        """Handles that the client gives and the request therefore carries."""
        return [a for a in self.arguments if self.may_defer and a.creates]

    @property
    def destroys(self) -> bool:
        """An object is gone after it, whatever it returns."""
        return any(a.destroys for a in self.arguments)

    @property
    def sent_after_failures(self) -> bool:
        """It is sent also where it tells of an earlier failure: the program does not ask again."""
        return self.destroys or self.releases

    @property
    def after_held(self) -> bool:
        """It must not overtake work that the worker still holds back: it destroys what that work may need, if nothing
        else is said."""
        return self.destroys if self.after_held_said is None else self.after_held_said

    @property
    def may_be_held(self) -> bool:
        """The worker may have to keep its frame until its time has come."""
        return bool(self.stream) or self.turn or self.after_held


@dataclass
class Operation:
    name: str
    group: str
    request: str = ""
    reply: str = ""
    mode: str = ""
    why: str = ""
    stream: str = ""
    context: str = "current"
    forgotten_by: list[str] = field(default_factory=list)
    after_held: bool = False
    turn: bool = False
    alike: list[str] = field(default_factory=list)  # fields of the request, as a call's parameters
    crew: str = ""
    asks: bool = False
    names_memory: bool = False  # the worker has a function that says what device memory it uses
    driver_room: bool = False
    attributes: str = ""  # the field with launch attributes: the work records the events in them
    taken_for_done: str = ""  # the field that says that the program takes the work for done
    passes_functions: str = ""  # the field that says that functions of the program before it need not have run
    staged: bool = False  # its bytes are received in pinned memory
    dropped: bool = False  # the worker has a function for one that is not carried out
    held: bool = False  # its service may keep it behind what is held back
    # fields that are handles of a kind, which are looked up for the worker's function
    handles: dict[str, str] = field(default_factory=dict)
    opcode: int = 0

    @property
    def looked_up(self) -> list[tuple[str, str, str]]:
        return [(name, camel(name), kind) for name, kind in self.handles.items()]

    @property
    def may_be_held(self) -> bool:
        return bool(self.stream) or self.turn or self.after_held or self.held


@dataclass
class Kind:
    name: str
    number: int
    type: str
    owner: str
    lives_with: str


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


def shape(call: Call, structs: dict[str, Struct]) -> str:
    parts = []
    for a in call.arguments:
        part = f"{a.name}:{a.direction}:{a.form}:{wire_type(a.value)}:{a.kind}"
        if a.form in ("array", "struct") and a.optional:
            part += ":optional"
        if a in call.minted:
            part += ":minted"
        if a.value.kind == "struct":
            part += ":" + ",".join(f"{leaf.path} {wire_type(leaf.type)}" for leaf in structs[a.value.name].leaves)
        parts.append(part)
    return hashlib.sha256(";".join(parts).encode()).hexdigest()[:8]


def names_in(expression: str) -> list[str]:
    """What an expression is about: neither the functions it calls nor the members it reaches."""
    return sorted(set(re.findall(r"(?<![\w.])[A-Za-z_]\w*\b(?!\s*\()", expression)))


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{path.name}: {error}; it must be there and be TOML") from error


def launch_attribute_members(header: Header) -> dict[str, Type]:
    """The members of the union CUlaunchAttributeValue."""
    function = header.functions["cuStreamSetAttribute"]
    return {m.name: m.type for m in function.parameters[2].type.element.members}


class Loader:
    def __init__(self, header: Header, folder: Path):
        self.header = header
        self.folder = folder
        self.complaints: list[str] = []
        self.plain = {f.plain: header.functions[f.plain] for f in header.functions.values()}
        self.calls: dict[str, Call] = {}
        self.operations: dict[str, Operation] = {}
        self.struct_keys: dict[str, tuple[str, dict[str, Any]]] = {}  # file, keys
        self.kinds: dict[str, Kind] = {}
        self.kind_by_type: dict[str, str] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        self.launch_attributes: dict[str, dict[str, str]] = {}
        self.checks: dict[str, dict[str, str]] = {}  # by function: calls and their files
        self.forms: dict[str, list[Call]] = {}  # by what they are forms of
        self.unsafe_in_capture: list[tuple[str, str]] = []  # file, symbol
        self.cleared: list[tuple[str, str, list[str]]] = []  # file, symbol, parameters

    def complain(self, file: str, where: str, rule: str, text: str) -> None:
        self.complaints.append(f"{file}: {where}: [{rule}] {text}")

    def check_keys(self, file: str, where: str, entry: dict[str, Any], known: set[str]) -> None:
        for key in sorted(entry.keys() - known):
            self.complain(file, where, "unknown-key",
                          f"'{key}' means nothing here; known are {', '.join(sorted(known))}")

    def check_value(self, file: str, where: str, rule: str, value: str, known: tuple[str, ...]) -> None:
        if value not in known:
            self.complain(file, where, rule, f"{rule} must be one of {', '.join(known)}")

    def load(self) -> Spec:
        self.read_kinds()
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
                self.complain(file, f"capture, {name}", "unknown-name",
                              "the toolkit exports no such symbol; remove or correct it")
        for file, name, parameters in self.cleared:
            places = {p.name for p in self.plain[name].parameters if p.type.kind == "pointer"} if name in self.calls \
                else set()
            for parameter in parameters:
                if parameter not in places:
                    self.complain(file, f"cleared, {name}", "unknown-name",
                                  f"'{parameter}' is no pointer parameter; remove or correct it")
            if name in self.calls:
                self.calls[name].cleared = parameters
        structs = self.collect_structs()
        self.check_creates()
        self.check_forms()
        self.check_checks()
        self.stop()  # what is not right yet has no shape
        for call in self.calls.values():
            call.shape = shape(call, structs)
        self.number_opcodes()
        self.stop()
        return Spec(self.header, groups, self.calls, self.operations, self.kinds, structs, self.attributes,
                    self.launch_attributes)

    def stop(self) -> None:
        if self.complaints:
            raise SpecError("\n".join(self.complaints))

    # --- reading -----------------------------------------------------------------------------------------------------

    def read_kinds(self) -> None:
        file = "handles.toml"
        by_number: dict[int, str] = {}
        for name, entry in read_toml(self.folder / file).get("kinds", {}).items():
            self.check_keys(file, name, entry, {"number", "type", "owner", "lives_with"})
            kind = Kind(name, entry.get("number", 0), entry.get("type", ""), entry.get("owner", ""),
                        entry.get("lives_with", "session"))
            if not 1 <= kind.number <= 63:
                self.complain(file, name, "kind-number", "needs a number within 1..63")
            elif kind.number in by_number:
                self.complain(file, name, "kind-number",
                              f"has the number of {by_number[kind.number]}; give it the next free one")
            self.check_value(file, name, "owner", kind.owner, OWNERS)
            self.check_value(file, name, "lives_with", kind.lives_with, LIVES_WITH)
            by_number[kind.number] = name
            self.kinds[name] = kind
            self.kind_by_type[kind.type] = name

    def read_group(self, path: Path) -> None:
        data = read_toml(path)
        group = path.stem
        known = {"local", "special", "refused", "narrows", "forms", "calls", "operations", "structs", "attributes",
                 "launch_attributes", "capture", "cleared"}
        self.check_keys(path.name, "sections", data, known)
        for how in ("local", "special", "refused"):
            for entry in data.get(how, []):
                self.read_list(path.name, group, how, entry)
        for name, entry in data.get("calls", {}).items():
            self.read_call(path.name, group, name, entry)
        for name, entry in data.get("narrows", {}).items():
            self.read_narrows(path.name, group, name, entry)
        for name, expression in data.get("forms", {}).items():
            self.read_form(path.name, group, name, expression)
        for name, entry in data.get("operations", {}).items():
            self.read_operation(path.name, group, name, entry)
        for name, entry in data.get("structs", {}).items():
            self.check_keys(path.name, f"struct {name}", entry, STRUCT_KEYS)
            self.struct_keys[name] = (path.name, entry)
        self.check_keys(path.name, "capture", data.get("capture", {}), {"unsafe"})
        self.unsafe_in_capture += [(path.name, name) for name in data.get("capture", {}).get("unsafe", [])]
        self.cleared += [(path.name, name, parameters) for name, parameters in data.get("cleared", {}).items()]
        for name, entry in data.get("attributes", {}).items():
            self.check_keys(path.name, name, entry, {"value", "why"})
            if name not in self.header.enums["CUdevice_attribute"]:
                self.complain(path.name, name, "unknown-name",
                              "is no device attribute of this toolkit; remove or correct it")
            if not entry.get("why"):
                self.complain(path.name, name, "reason", "a value of our own needs a reason: add why = \"...\"")
            self.attributes[name] = entry
        for name, entry in data.get("launch_attributes", {}).items():
            self.check_keys(path.name, name, entry, {"member", "handle"})
            if name not in self.header.enums["CUlaunchAttributeID"]:
                self.complain(path.name, name, "unknown-name",
                              "is no launch attribute of this toolkit; remove or correct it")
            member = entry.get("member")
            if member is None:
                self.complain(path.name, name, "member",
                              "name the member of CUlaunchAttributeValue that it uses, or \"\"")
            elif member and member not in launch_attribute_members(self.header):
                self.complain(path.name, name, "unknown-name", f"CUlaunchAttributeValue has no member '{member}'")
            self.launch_attributes[name] = entry

    def add(self, file: str, call: Call) -> None:
        if call.name in self.calls:
            self.complain(file, call.name, "twice", f"is decided already in {self.calls[call.name].group}.toml; "
                          "keep one of the two")
        self.calls[call.name] = call

    def read_list(self, file: str, group: str, how: str, entry: dict[str, Any]) -> None:
        where = f"[[{how}]] {', '.join(entry.get('symbols', [])[:2])}"
        self.check_keys(file, where, entry, LIST_KEYS)
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
        self.check_keys(file, name, entry, CALL_KEYS)
        by_hand = entry.get("client", "generated") != "generated" or entry.get("server", "generated") != "generated"
        call = Call(self.plain[name], group, "special" if by_hand else "generated", travels_as=entry.get("as", ""),
                    after_held_said=entry.get("after_held"), **{k: entry[k] for k in CALL_FIELDS if k in entry})
        self.add(file, call)
        if call.travels_as:
            return  # its twin is checked
        self.check_value(file, name, "mode", call.mode, MODES)
        self.check_value(file, name, "context", call.context, CONTEXTS)
        self.check_value(file, name, "client", call.client, ("generated", "hand"))
        self.check_value(file, name, "server", call.server, ("generated", "hand", "none"))
        if call.mode == "either" and call.client != "hand":
            self.complain(file, name, "either",
                          "what decides whether it is awaited is written by hand: add client = \"hand\"")
        if call.room and (call.mode != "barrier" or call.client == "hand" or call.stream):
            self.complain(file, name, "room", "room is made for calls that the client's generated half waits for and "
                                              "that are on no stream; "
                          "remove it, or use wait_with_room where the call is made by hand")
        if by_hand and not call.why:
            self.complain(file, name, "reason", "is served by hand and needs a reason: add why = \"...\"")
        names = {p.name for p in call.function.parameters}
        for key in ("stream", "waits_for", "records", "launches"):
            if getattr(call, key) and getattr(call, key) not in names:
                self.complain(file, name, "unknown-name", f"{key} '{getattr(call, key)}' is no parameter")
        for word in call.alike:
            if word not in names:
                self.complain(file, name, "unknown-name", f"alike names '{word}', which is no parameter")
        self.check_order(file, name, call)
        for check in entry.get("checks", []):
            self.read_check(file, call, check, names)
        annotations = entry.get("params", {})
        for parameter in sorted(annotations.keys() - names):
            self.complain(file, f"{name}, parameter {parameter}", "unknown-name",
                          "there is no such parameter; remove or correct it")
        if call.server == "none":
            return  # travels under another opcode, through hand-written code
        counts = {notes["count_inout"] for notes in annotations.values() if "count_inout" in notes}
        for p in call.function.parameters:
            if p.name in counts and p.type.kind != "pointer":
                self.complain(file, f"{name}, parameter {p.name} ({p.type.spelling})", "count",
                              "cannot be told how many there were, "
                              "as it is no pointer; use count instead of count_inout")
            elif p.name in counts:  # says how much there is room for, then how much there was
                counted = [n for n, notes in annotations.items() if notes.get("count_inout") == p.name]
                call.arguments.append(Argument(p.name, p.type, "inout", "status", counts=counted))
            else:
                self.read_parameter(file, call, p, annotations.get(p.name, {}), names)
        if call.names_memory and not call.memory:
            self.complain(file, name, "names_memory", "there is no address that the GPU is to use: add device = "
                          "\"use\" to a parameter, or remove names_memory")
        if call.may_defer and call.outputs:
            self.complain(file, name, "deferred", f"a deferred call cannot return '{call.outputs[0].name}'; "
                          "make it a barrier, or the output a handle that the client creates")

    def read_narrows(self, file: str, group: str, name: str, entry: dict[str, Any]) -> None:
        self.check_keys(file, name, entry, NARROW_KEYS)
        to, undo = entry.get("to", ""), entry.get("undo", "")
        for symbol in filter(None, (name, to, undo)):
            if symbol not in self.plain:
                self.complain(file, symbol, "unknown-name", "the toolkit exports no such symbol; remove or correct it")
                return
        if not to:
            self.complain(file, name, "narrow", "name the 64-bit call that it stands for: add to = \"...\"")
            return
        narrow, wide = self.plain[name].parameters, self.plain[to].parameters
        call = Call(self.plain[name], group, "generated", narrows=to, undo=undo)
        self.add(file, call)
        if len(narrow) != len(wide):
            self.complain(file, name, "narrow", f"has other parameters than {to}; serve it by hand")
            return
        for n, w in zip(narrow, wide):
            form = self.narrow_form(n.type, w.type)
            if not form:
                self.complain(file, f"{name}, parameter {n.name} ({n.type.spelling})", "narrow",
                              f"is no narrower form of {w.type.spelling}; serve the call by hand")
            call.narrowed.append(Narrowed(n.name, w.type, form))

    @staticmethod
    def narrow_form(narrow: Type, wide: Type) -> str:
        if narrow == wide:
            return "same"
        if narrow.kind == "integer" and wide.kind in ("integer", "address"):
            return "same" if narrow.bytes <= wide.bytes else ""
        if narrow.kind != "pointer" or wide.kind != "pointer" or narrow.element.const != wide.element.const:
            return ""
        n, w = narrow.element, wide.element
        if n.kind == "struct" and w.kind == "struct" and [m.name for m in n.members] == [m.name for m in w.members]:
            return "struct_in" if n.const else "struct_out"
        if n.kind == "integer" and not n.const:
            return {"address": "address", "integer": "size"}.get(w.kind, "")
        return ""

    def read_form(self, file: str, group: str, name: str, expression: str) -> None:
        if name not in self.plain:
            self.complain(file, name, "unknown-name", "the toolkit exports no such symbol; remove or correct it")
            return
        said = re.fullmatch(r"(\w+)\((.*)\)", expression)
        if not said:
            self.complain(file, name, "form", f"'{expression}' is no call: write FUNCTION(ARGUMENTS)")
            return
        target, arguments = said.groups()
        call = Call(self.plain[name], group, "generated", form_of=target, form_arguments=arguments)
        self.add(file, call)
        self.forms.setdefault(target, []).append(call)
        known = {p.name for p in call.function.parameters} | WORDS
        twins = [f for f in self.header.functions.values() if f.plain == name]
        if len(twins) > 1 and not call.own_stream:
            known.add("default_stream")
        for word in names_in(arguments):
            if word not in known and not word.startswith("CU_"):
                self.complain(file, name, "unknown-name", f"is a form with '{word}', which is no parameter")

    def read_check(self, file: str, call: Call, check: str, names: set[str]) -> None:
        said = re.fullmatch(r"(\w+)\(([\w, ]*)\)", check)
        if not said:
            self.complain(file, call.name, "checks", f"'{check}' is no call: write FUNCTION(PARAMETERS)")
            return
        for word in names_in(said[2]):
            if word not in names:
                self.complain(file, call.name, "unknown-name", f"checks '{word}', which is no parameter")
        call.checks.append((said[1], said[2]))
        self.checks.setdefault(said[1], {})[call.name] = file

    def check_checks(self) -> None:
        for function, calls in self.checks.items():
            if len(calls) < CHECKS_MIN:
                name, file = next(iter(calls.items()))
                self.complain(file, name, "checks",
                              f"{function} serves {len(calls)} calls, and must serve {CHECKS_MIN} to be named in the "
                              "spec; check by hand")

    def check_forms(self) -> None:
        for target, forms in self.forms.items():
            call, first = self.calls.get(target), forms[0]
            file = f"{first.group}.toml"
            if call and not call.by_hand:
                self.complain(file, first.name, "form",
                              f"the client has no function for {target}; name a call for which it has one, or use as")
            elif call and call.how == "local":
                for form in forms:
                    form.how = "local"
            elif not call and target.startswith("cu"):
                self.complain(file, first.name, "unknown-name",
                              f"is a form of '{target}', which is no call of the spec; remove or correct it")
            elif not call and len(forms) < FORMS_MIN:
                self.complain(file, first.name, "form",
                              f"{target} serves {len(forms)} calls, and must serve {FORMS_MIN} to be named in the "
                              "spec; write the calls by hand")

    def read_parameter(self, file: str, call: Call, p: Parameter, notes: dict[str, Any], names: set[str]) -> None:
        where = f"{call.name}, parameter {p.name} ({p.type.spelling})"
        self.check_keys(file, where, notes, PARAMETER_KEYS)
        for key in ("count", "count_inout", "extent"):
            for word in names_in(notes.get(key, "")):
                if word not in names:
                    self.complain(file, where, "unknown-name", f"{key} names '{word}', which is no parameter")
        t = p.type
        bounds = notes.get("range", [0, 0])
        if t.kind != "integer" and "range" in notes or len(bounds) != 2 or bounds[0] > bounds[1]:
            self.complain(file, where, "range", "a range is of a number, and has two bounds: [least, most]")
        direction = notes.get("dir", "in")
        self.check_value(file, where, "direction", direction, DIRECTIONS)
        if direction != "in" and (t.kind != "pointer" or t.element.const):
            self.complain(file, where, "direction",
                          f"nothing can come {direction} of a value or by a pointer to const; "
                          "leave dir away")
            direction = "in"
        a = Argument(p.name, t, direction, "scalar", **{k: notes[k] for k in PARAMETER_KEYS - {"dir"} if k in notes})
        if a.device:
            self.check_value(file, where, "device", a.device, ("use", "value"))
        if notes.get("device") == "use" and not notes.get("extent"):
            self.complain(file, where, "extent", "an address that is used needs its extent in bytes")
        if t.kind in SCALARS:
            pass
        elif t.kind == "address":
            a.form = "address"
        elif t.kind == "handle":
            a.form, a.kind = "handle", self.kind_of(file, where, t)
        elif t.kind == "pointer" and notes.get("device") == "value":
            a.form = "address"
        elif (t.kind == "pointer" and t.element.const and t.element.kind == "integer"
              and t.element.spelling.endswith("char") and "count" not in notes):
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
            self.complain(file, where, "kind",
                          f"the generator cannot carry a {t.kind} of this type; serve the call by hand "
                          "(client and server = \"hand\" with operations) or refuse it")
        call.arguments.append(a)

    def check_order(self, file: str, name: str, it: "Call | Operation") -> None:
        """What the worker must know to give it to the driver at its time."""
        if it.crew:
            self.check_value(file, name, "crew", it.crew, CREW)
        if it.alike and not it.turn:
            self.complain(file, name, "alike",
                          "tells how long the GPU takes for what it is given in a turn: add turn = true, or remove it")
        if it.asks and (it.turn or it.stream or it.driver_room or getattr(it, "room", False)):
            self.complain(file, name, "asks", "what only asks gives no work and takes no memory: remove it, or turn, "
                          "stream, room and driver_room")

    def kind_of(self, file: str, where: str, t: Type) -> str:
        if t.name not in self.kind_by_type:
            self.complain(file, where, "kind", f"handles of type {t.name} have no kind; add one to handles.toml")
        return self.kind_by_type.get(t.name, "")

    def read_operation(self, file: str, group: str, name: str, entry: dict[str, Any]) -> None:
        self.check_keys(file, name, entry, OPERATION_KEYS)
        if not entry.get("why"):
            self.complain(file, name, "reason", "an operation is hand-written and needs a reason: add why = \"...\"")
        if not entry.get("request"):
            self.complain(file, name, "request", "name its struct of protocol/operations.capnp: add request = \"...\"")
        taken = next((o.name for o in self.operations.values() if o.request == entry.get("request")), "")
        if taken:
            self.complain(file, name, "request", f"{taken} has this request already; a request names one operation: "
                                                 "give it a struct of its own")
        self.check_value(file, name, "mode", entry.get("mode", ""), MODES)
        if entry.get("mode") == "deferred" and entry.get("reply"):
            self.complain(file, name, "deferred",
                          f"a deferred operation cannot return a '{entry['reply']}'; make it a barrier, or either")
        self.check_value(file, name, "context", entry.get("context", "current"), CONTEXTS)
        operation = Operation(name, group, **{k: entry[k] for k in OPERATION_KEYS if k in entry})
        for handle, kind in operation.handles.items():
            if kind not in self.kinds:
                self.complain(file, name, "unknown-name",
                              f"handles says of '{handle}' that it is a '{kind}', which is no handle kind")
        self.check_order(file, name, operation)
        for key in ("attributes", "taken_for_done", "passes_functions"):
            if getattr(operation, key) and not operation.stream:
                self.complain(file, name, "stream",
                              f"{key} is about work on a stream: add stream = \"...\", or remove it")
        self.operations[name] = operation

    # --- what must hold over the whole spec --------------------------------------------------------------------------

    def collect_structs(self) -> dict[str, Struct]:
        structs: dict[str, Struct] = {}
        for call in self.calls.values():
            for a in call.arguments:
                t = a.value
                if t.kind == "struct" and t.name not in structs:
                    structs[t.name] = self.read_struct(t, f"{call.group}.toml")
        for name in sorted(self.struct_keys.keys() - structs):
            self.complain(self.struct_keys[name][0], f"struct {name}", "unknown-name", "no call carries such a struct; "
                          "remove or correct it")
        return structs

    def read_struct(self, t: Type, file: str) -> Struct:
        file, keys = self.struct_keys.get(t.name, (file, {}))
        where = f"struct {t.name}"
        unused = {(key, path) for key in STRUCT_KEYS for path in keys.get(key, {})}
        leaves = self.leaves(file, where, t, "", "", keys, unused)
        # what tells which member counts comes first
        struct = Struct(t.name, sorted(leaves, key=lambda leaf: leaf.only_if != ""))
        for key, path in sorted(unused):
            what = {"skip": "field to skip", "unions": "union", "extents": "address"}[key]
            self.complain(file, f"{where}, field {path}", "unknown-name",
                          f"there is no such {what}; remove or correct it")
        paths = {leaf.path for leaf in struct.leaves}
        for path, union in keys.get("unions", {}).items():
            if union.get("by") not in paths:
                self.complain(file, f"{where}, union {path}", "unknown-name",
                              f"by names '{union.get('by')}', which is no field that travels")
        for leaf in struct.leaves:
            for name in names_in(leaf.extent):
                if name not in {m.name for m in t.members}:
                    self.complain(file, f"{where}, field {leaf.path}", "unknown-name",
                                  f"extent names '{name}', which is no field")
        return struct

    def leaves(self, file: str, where: str, t: Type, prefix: str, only_if: str, keys: dict[str, Any],
               unused: set[tuple[str, str]]) -> list[Leaf]:
        """The fields of a struct (or of one within it), with what its keys say of them."""
        found: list[Leaf] = []
        for m in t.members:
            path = prefix + m.name
            field_where = f"{where}, field {path} ({re.sub(r' .unnamed.*', '', m.type.spelling)})"
            if path in keys.get("skip", {}):
                unused.discard(("skip", path))
            elif m.type.kind == "struct":
                found += self.leaves(file, where, m.type, path + ".", only_if, keys, unused)
            elif m.type.kind == "union" and path in keys.get("unions", {}):
                unused.discard(("unions", path))
                found += self.union_leaves(file, where, m.type, path, only_if, keys, unused)
            elif m.type.kind == "handle":
                found.append(Leaf(path, m.type, only_if, kind=self.kind_of(file, field_where, m.type)))
            elif m.type.kind == "address":
                unused.discard(("extents", path))
                extent = keys.get("extents", {}).get(path, "")
                if not extent:
                    self.complain(file, field_where, "extent",
                                  "an address that is used needs its extent in bytes: add it to extents")
                found.append(Leaf(path, m.type, only_if, extent=extent))
            elif m.type.kind in SCALARS or (m.type.kind == "array" and m.type.element.kind in SCALARS):
                found.append(Leaf(path, m.type, only_if))
            else:
                self.complain(file, field_where, "kind",
                              "cannot travel by itself; add it to skip, with the reason, say under unions which "
                              "member of it counts, or serve the call by hand")
        return found

    def union_leaves(self, file: str, where: str, t: Type, path: str, only_if: str, keys: dict[str, Any],
                     unused: set[tuple[str, str]]) -> list[Leaf]:
        """Of a union the members that may count, each under its condition."""
        union = keys["unions"][path]
        members = {m.name: m for m in t.members}
        found: list[Leaf] = []
        for name, value in union.items():
            if name == "by":
                continue
            if name not in members:
                self.complain(file, f"{where}, union {path}", "unknown-name", f"it has no member '{name}'")
                continue
            condition = " && ".join(filter(None, [only_if, f"s.{union.get('by')} == {value}"]))
            found += self.leaves(file, where, Type("struct", "", members=(members[name],)), path + ".", condition, keys,
                                 unused)
        return found

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
            if call.narrows in self.calls and self.calls[call.narrows].how == "refused":
                self.complain(f"{call.group}.toml", call.name, "narrow", f"stands for {call.narrows}, which is refused")
            if call.travels_as and call.travels_as not in self.calls:
                self.complain(f"{call.group}.toml", call.name, "unknown-name", f"as = '{call.travels_as}' is no call")
        for one in [*self.calls.values(), *self.operations.values()]:
            for name in one.forgotten_by:
                if name not in self.calls and name not in self.operations:
                    self.complain(f"{one.group}.toml", one.name, "unknown-name",
                                  f"forgotten_by names '{name}', which is neither call nor operation")

    def number_opcodes(self) -> None:
        file = "opcodes.toml"
        entries = read_toml(self.folder / file).get("opcodes", {})
        for expected, (name, entry) in enumerate(entries.items(), 1):
            if entry.get("number") != expected or "shape" not in entry:
                self.complain(file, name, "opcode",
                              f"is {entry} where number {expected} and a shape belong; opcodes are "
                              "appended, never moved, removed or reused: restore the register")
                return
        for name, call in self.calls.items():
            if not call.travels:
                continue
            if name not in entries:
                self.complain(file, name, "opcode", "has no opcode; run: codegen/register")
            elif entries[name]["shape"] != call.shape:
                self.complain(file, name, "opcode", f"travels in another shape ({call.shape}) than its opcode "
                              f"{entries[name]['number']} was given for ({entries[name]['shape']}); restore the "
                              "annotations, "
                              "or give it a new opcode with: codegen/register --renew " + name)
            else:
                call.opcode = entries[name]["number"]
        for name, operation in self.operations.items():
            if name not in entries:
                self.complain(file, name, "opcode", "has no opcode; run: codegen/register")
            else:
                operation.opcode = entries[name]["number"]


def load(header: Header, folder: Path) -> Spec:
    return Loader(header, folder).load()
