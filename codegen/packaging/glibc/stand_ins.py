"""Makes stand-ins for glibc's libraries, to link with, that have nothing newer than a version of it.

stand_ins.py COMPILER VERSION FOLDER

The libraries of the machine that builds know each symbol's older versions too, as programs of the past ask for them. A
stand-in offers of each symbol the newest version that is not too new. Nothing runs with a stand-in: its functions are
empty."""

import collections
import re
import subprocess
import sys
from pathlib import Path

Symbol = collections.namedtuple("Symbol", "name version type bind address size")


def number(version):
    return tuple(map(int, version.split(".")))


def symbols(path):
    text = subprocess.run(["readelf", "--wide", "--dyn-syms", path], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit() or fields[6] in ("UND", "ABS"):
            continue
        name, _, version = fields[7].replace("@@", "@").partition("@")
        if version.startswith("GLIBC_2"):  # private ones are nobody else's
            yield Symbol(name, version.removeprefix("GLIBC_"), fields[3], fields[4], int(fields[1], 16),
                         int(fields[2], 0))


def chosen(path, bound):
    best = {}
    for symbol in symbols(path):
        if number(symbol.version) <= bound and (symbol.name not in best
                                                or number(best[symbol.name].version) < number(symbol.version)):
            best[symbol.name] = symbol
    return list(best.values())


def assembly(found):
    """Variables with one address keep one: the loader may put a variable into the program, and must then find all of
    its names."""
    lines, variables = [], collections.defaultdict(list)
    for symbol in found:
        lines.append(f".{'weak' if symbol.bind == 'WEAK' else 'globl'} {symbol.name}")
        if symbol.type in ("FUNC", "IFUNC"):
            lines += [".text", f".type {symbol.name}, %function", f"{symbol.name}: .byte 0"]
        else:
            variables[(symbol.type, symbol.address)].append(symbol)
    for (kind, _), names in sorted(variables.items()):
        lines += ['.section .tbss,"awT",%nobits' if kind == "TLS" else ".bss", ".balign 32"]
        for symbol in names:
            lines += [f".type {symbol.name}, %{'tls_object' if kind == 'TLS' else 'object'}",
                      f".size {symbol.name}, {symbol.size}",
                      f"{symbol.name}:"]
        lines.append(f".skip {max(symbol.size for symbol in names)}")
    return "\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""])


def version_script(found):
    nodes = collections.defaultdict(list)
    for symbol in found:
        nodes[symbol.version].append(symbol.name)
    return "".join(f"GLIBC_{version} {{ global: {' '.join(f'{name};' for name in nodes[version])} }};\n"
                   for version in sorted(nodes, key=number))


def make(compiler, folder, soname, found):
    source, script = folder / f"{soname}.S", folder / f"{soname}.map"
    source.write_text(assembly(found))
    script.write_text(version_script(found))
    options = [f"-Wl,--version-script={script}"] if found else []
    subprocess.run([compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", *options, "-o", folder / soname, source],
                   check=True)


def main(compiler, version, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)

    def file(name):
        path = Path(subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True,
                                   text=True).stdout.strip())
        if not path.is_absolute():
            sys.exit(f"{compiler} finds no {name}; install the C library's files for development")
        return path.resolve()

    bound = number(version)
    for soname in ("libc.so.6", "libm.so.6"):
        make(compiler, folder, soname, chosen(file(soname), bound))
    for soname in ("libpthread.so.0", "libdl.so.2"):  # libraries of old systems, whose symbols libc has now
        make(compiler, folder, soname, [])
    loader = re.search(r"\S*/ld-linux[\w.-]*", file("libc.so").read_text())[0]
    (folder / "libc.so").write_text(f"GROUP({folder / 'libc.so.6'} {file('libc_nonshared.a')} AS_NEEDED({loader}))\n")
    (folder / "libm.so").write_text(f"GROUP(AS_NEEDED({folder / 'libm.so.6'}))\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
