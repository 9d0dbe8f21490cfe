"""Command line of the generator; codegen/generate and codegen/register call it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import header as header_module
from . import register, render, spec, touched

HERE = Path(__file__).resolve().parent.parent


def check_abi(header: header_module.Header, folder: Path, accept: bool) -> None:
    """Compares the toolkit with the committed listing, so that another toolkit is a readable diff and no surprise."""
    path = folder / "abi" / f"{header.version}.txt"
    lines = [f"{n} {header.functions[n].signature_hash} {header.functions[n].since}\n"
             for n in sorted(header.functions)]
    if accept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(lines))
        return
    if not path.exists():
        raise spec.SpecError(f"abi/{header.version}.txt: [toolkit] there is no listing of CUDA {header.version}; look "
                             "at what "
                             "is new, then run: codegen/register --toolkit")
    known = path.read_text().splitlines(keepends=True)
    changed = sorted(set(lines) ^ set(known))
    if changed:
        raise spec.SpecError(f"abi/{header.version}.txt: {changed[0].split()[0]}: [toolkit] differs from the installed "
                             "headers "
                             f"({len(changed)} lines do); if the change is right, run: codegen/register --toolkit")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fargpu_codegen", description=__doc__)
    parser.add_argument("command", choices=["generate", "register"])
    parser.add_argument("--include", type=Path, default=Path("/usr/local/cuda/include"),
                        help="include folder of the CUDA toolkit (default: %(default)s)")
    parser.add_argument("--spec", type=Path, default=HERE / "spec", help="folder of the spec (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="generate: folder to write to")
    parser.add_argument("--tests", type=Path,
                        help="generate: folder of the tests, for the coverage table's last column (default: none)")
    parser.add_argument("--renew", action="append", default=[], metavar="CALL",
                        help="register: give this call, whose shape changed, a new opcode")
    parser.add_argument("--toolkit", action="store_true",
                        help="register: accept the installed toolkit's functions as they are")
    options = parser.parse_args(arguments)
    try:
        header = header_module.read(options.include)
        check_abi(header, options.spec, accept=options.command == "register" and options.toolkit)
        if options.command == "register":
            for name in register.update(header, options.spec, set(options.renew)):
                print(f"opcode for {name}")
            return 0
        if not options.out:
            parser.error("generate needs --out")
        tests = touched.touched(options.tests, options.include) if options.tests else {}
        render.write(spec.load(header, options.spec), HERE / "templates", options.out, tests)
    except (header_module.HeaderError, spec.SpecError) as error:
        print(f"fargpu codegen stopped:\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
