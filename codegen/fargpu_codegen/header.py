"""Reads the toolkit's headers through libclang into plain data. Types and symbols come from here and nowhere else."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

import clang.cindex as cindex
from clang.cindex import CursorKind, TypeKind

INTEGER_HANDLES = ("CUmemGenericAllocationHandle", "CUtexObject", "CUsurfObject")
PROBE = "fargpu_headers.cpp"
# Functions that share objects with a display are exported, because programs are linked with them and loaders want to
# find them (ffmpeg's, for one). All are refused, so that of their parameters nothing is needed, and nobody has to have
# the headers of these interfaces: what CUDA's headers use of them is declared here.
DISPLAY_HEADERS = ("cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
DISPLAY_TYPES = {
    "GL/gl.h": "typedef unsigned int GLenum; typedef unsigned int GLuint;",
    "EGL/egl.h": "typedef int EGLint;",
    "EGL/eglext.h": "typedef void *EGLImageKHR; typedef void *EGLStreamKHR; typedef void *EGLSyncKHR;",
    "vdpau/vdpau.h": "typedef unsigned int VdpDevice; typedef unsigned int VdpVideoSurface; "
                     "typedef unsigned int VdpOutputSurface; typedef int VdpGetProcAddress();",
}
DISPLAY_FOLDER = "/fargpu_display"  # of these, which only libclang sees
# Without __CUDA_API_VERSION_INTERNAL macros rename functions and hide about a third of the exported symbols.
SOURCE = """#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <cudaProfiler.h>
#include <cudaTypedefs.h>
#include <cudaProfilerTypedefs.h>
#if __has_include(<cudaGL.h>)
#include <cudaGL.h>
#include <cudaGLTypedefs.h>
#include <cudaEGL.h>
#include <cudaEGLTypedefs.h>
#include <vdpau/vdpau.h>
#include <cudaVDPAU.h>
#include <cudaVDPAUTypedefs.h>
#endif
"""


class HeaderError(Exception):
    """The headers cannot be trusted; the text names file, line and repair."""


@dataclass(frozen=True)
class Type:
    """A C type as the generator sees it.

    kind: void, integer, float, enum, handle (pointer to an opaque struct, or an integer CUDA calls a handle), address
    (CUdeviceptr), struct, union, pointer, array, function. `spelling` is what generated C++ writes.
    """

    kind: str
    spelling: str
    bytes: int = 0
    signed: bool = False
    const: bool = False
    element: Type | None = None  # of pointers and arrays
    length: int = 0  # of arrays
    name: str = ""  # of handles, enums and structs: the typedef
    members: tuple[Parameter, ...] = ()  # of structs and unions


@dataclass(frozen=True)
class Parameter:
    name: str
    type: Type


@dataclass
class Function:
    name: str
    parameters: list[Parameter]
    file: str
    line: int
    base: str = ""  # name by which cuGetProcAddress knows it
    since: int = 0  # CUDA version that introduced this variant
    per_thread: bool = False  # _ptds or _ptsz: a null stream means the calling thread's own default stream

    @property
    def signature(self) -> str:
        return ", ".join(f"{p.type.spelling} {p.name}" for p in self.parameters)

    @property
    def declared(self) -> bool:
        """By a header that generated sources may include."""
        return self.file not in DISPLAY_HEADERS

    @property
    def signature_hash(self) -> str:
        return hashlib.sha256(self.signature.encode()).hexdigest()[:12]

    @property
    def plain(self) -> str:
        """The symbol without the per-thread suffix: the one that the spec describes."""
        return re.sub(r"_pt[sd][sz]$", "", self.name)


@dataclass
class Header:
    version: int
    functions: dict[str, Function] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)


def _classify(t: cindex.Type) -> Type:
    spelling = t.spelling.replace("_st *", "_st*")
    canonical = t.get_canonical()
    const = canonical.is_const_qualified()
    declared = t.get_declaration().spelling if t.kind in (TypeKind.TYPEDEF, TypeKind.ELABORATED) else ""
    declared = re.sub(r"^const ", "", declared)
    if declared in ("CUdeviceptr", "CUdeviceptr_v2"):
        return Type("address", "CUdeviceptr", 8, const=const, name="CUdeviceptr")
    if declared in INTEGER_HANDLES:
        return Type("handle", declared, 8, const=const, name=declared)
    kind = canonical.kind
    if kind == TypeKind.VOID:
        return Type("void", spelling, const=const)
    if kind == TypeKind.POINTER:
        pointee = canonical.get_pointee()
        if pointee.kind in (TypeKind.FUNCTIONPROTO, TypeKind.FUNCTIONNOPROTO):
            return Type("function", spelling, 8, name=declared)
        if pointee.kind == TypeKind.RECORD and pointee.get_declaration().get_definition() is None:
            return Type("handle", spelling, 8, const=const, name=declared)
        # Keep the written pointee, so that typedef names survive.
        written = t.get_pointee()
        if written.kind == TypeKind.INVALID:
            written = pointee
        return Type("pointer", spelling, 8, const=const, element=_classify(written))
    if kind in (TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY):
        return Type("array", spelling, canonical.get_size(), element=_classify(canonical.element_type),
                    length=max(canonical.element_count, 0) if kind == TypeKind.CONSTANTARRAY else 0)
    if kind == TypeKind.ENUM:
        return Type("enum", spelling, 4, const=const, name=declared or canonical.get_declaration().spelling)
    if kind == TypeKind.RECORD:
        record = canonical.get_declaration()
        return Type("union" if record.kind == CursorKind.UNION_DECL else "struct", spelling, canonical.get_size(),
                    const=const, name=declared or record.spelling,
                    members=tuple(Parameter(c.spelling, _classify(c.type)) for c in canonical.get_fields()))
    if kind in (TypeKind.FLOAT, TypeKind.DOUBLE):
        return Type("float", spelling, canonical.get_size(), const=const)
    signed = kind in (TypeKind.CHAR_S, TypeKind.SCHAR, TypeKind.SHORT, TypeKind.INT, TypeKind.LONG, TypeKind.LONGLONG)
    unsigned = kind in (TypeKind.BOOL, TypeKind.CHAR_U, TypeKind.UCHAR, TypeKind.USHORT, TypeKind.UINT, TypeKind.ULONG,
                        TypeKind.ULONGLONG)
    if not signed and not unsigned:
        raise HeaderError(f"type '{spelling}' ({kind.name}) is of a kind the generator does not know; "
                          "teach header.py about it")
    return Type("integer", re.sub(r"^const ", "", spelling) if const else spelling, canonical.get_size(), signed, const)


def read(include: Path) -> Header:
    """Parses the headers below `include`; raises HeaderError on any diagnostic of level error."""
    if not (include / "cuda.h").is_file():
        raise HeaderError(f"{include}/cuda.h: no such file; give the toolkit's include folder with --include")
    resource = sorted(Path("/usr/lib/llvm-14/lib/clang").glob("*/include"))
    args = ["-x", "c++", "-std=c++17", f"-I{DISPLAY_FOLDER}", f"-I{include}"] + [f"-I{r}" for r in resource]
    files = [(PROBE, SOURCE)] + [(f"{DISPLAY_FOLDER}/{name}", text) for name, text in DISPLAY_TYPES.items()]
    try:
        unit = cindex.Index.create().parse(PROBE, args=args, unsaved_files=files)
    except cindex.LibclangError as error:
        raise HeaderError(f"libclang is not usable ({error}); install python3-clang") from error
    # libclang goes on after errors and hands out guessed types: an error makes every type below it worthless.
    for d in unit.diagnostics:
        if d.severity >= cindex.Diagnostic.Error:
            raise HeaderError(f"{d.location.file}:{d.location.line}: {d.spelling}; "
                              "the headers do not parse, so no type can be trusted: check the include folder")
    header = Header(version=0)
    typedefs: dict[str, str] = {}

    def visit(cursor: cindex.Cursor) -> None:
        for c in cursor.get_children():
            if c.kind in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL):  # extern "C"
                visit(c)
            elif c.kind == CursorKind.FUNCTION_DECL and re.match(r"cu[A-Z]", c.spelling):
                file, line, parameters = Path(c.location.file.name).name, c.location.line, []
                for a in c.get_arguments() if file not in DISPLAY_HEADERS else ():
                    try:
                        parameters.append(Parameter(a.spelling, _classify(a.type)))
                    except HeaderError as error:
                        raise HeaderError(f"{file}:{line}: {c.spelling}, parameter {a.spelling}: {error}") from error
                header.functions[c.spelling] = Function(c.spelling, parameters, file, line)
            elif c.kind == CursorKind.TYPEDEF_DECL:
                if c.spelling.startswith("PFN_cu"):
                    typedefs[c.spelling] = c.underlying_typedef_type.get_canonical().get_pointee().spelling
                underlying = c.underlying_typedef_type.get_canonical()
                declaration = underlying.get_declaration()
                if underlying.kind == TypeKind.ENUM and c.spelling.startswith("CU"):
                    header.enums[c.spelling] = {e.spelling: e.enum_value for e in declaration.get_children()}

    visit(unit.cursor)
    text = (include / "cuda.h").read_text(errors="replace")
    version = re.search(r"^#define CUDA_VERSION (\d+)", text, re.M)
    if not version:
        raise HeaderError(f"{include}/cuda.h: CUDA_VERSION is not defined; this is no CUDA toolkit header")
    header.version = int(version[1])
    _pair_versions(header, unit, typedefs)
    return header


def _pair_versions(header: Header, unit: cindex.TranslationUnit, typedefs: dict[str, str]) -> None:
    """Gives each function its base name, introduction version and per-thread flag.

    cudaTypedefs.h has one PFN_<base>_v<since>[_ptds|_ptsz] for each exported symbol. Sorted by version within a base
    name, they pair one to one with the symbols sorted by their _v suffix.
    """
    prototypes = {c.spelling: c.type.get_canonical().spelling
                  for c in unit.cursor.walk_preorder() if c.kind == CursorKind.FUNCTION_DECL}
    by_base: dict[tuple[str, bool], list[tuple[int, str]]] = {}
    for name in typedefs:
        match = re.fullmatch(r"PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?", name)
        if not match:
            raise HeaderError(f"cudaTypedefs.h: '{name}' is not of the form PFN_<base>_v<version>[_ptsz]")
        by_base.setdefault((match[1], bool(match[3])), []).append((int(match[2]), name))
    symbols: dict[tuple[str, bool], list[tuple[int, str]]] = {}
    for name in header.functions:
        match = re.fullmatch(r"(cu\w+?)(?:_v(\d+))?(_pt[sd][sz])?", name)
        symbols.setdefault((match[1], bool(match[3])), []).append((int(match[2] or 1), name))
    for key, variants in symbols.items():
        known = sorted(by_base.get(key, []))
        if len(known) != len(variants):
            raise HeaderError(f"cuda.h: {key[0]} has {len(variants)} variants but cudaTypedefs.h names {len(known)}; "
                              "the two headers are not of one toolkit")
        for (_, symbol), (since, typedef) in zip(sorted(variants), known):
            if prototypes[symbol] != typedefs[typedef]:
                raise HeaderError(f"cuda.h: {symbol} has type '{prototypes[symbol]}' but {typedef} has "
                                  f"'{typedefs[typedef]}'; the pairing by version is broken")
            function = header.functions[symbol]
            function.base, function.since, function.per_thread = key[0], since, key[1]
