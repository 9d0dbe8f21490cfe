#!/usr/bin/python3
"""Signs a release: lists the checksums of all packages of a folder in SHA256SUMS, and signs that list by GnuPG.

sign_packages.py FOLDER KEY

KEY is a key of gpg that may sign: a fingerprint, or an address. The signature is SHA256SUMS.asc. Packages that the
list has already must be as it says: those that other machines have made, such as the ones for aarch64, are added."""

import subprocess
import sys
from pathlib import Path

import checksums


def sign(folder: Path, key: str) -> None:
    if not checksums.packages(folder):
        sys.exit(f"{folder} has no packages; run: cmake --build build --target packages")
    for name, checksum in checksums.listed(folder).items():
        if not (folder / name).exists():
            sys.exit(f"{folder} has no {name}, which {checksums.NAME} there lists; make the packages again")
        if checksums.of(folder / name) != checksum:
            sys.exit(f"{folder / name} is not the file that {checksums.NAME} there lists; make the packages again")
    checksums.write(folder)
    signature = folder / f"{checksums.NAME}.asc"
    try:
        done = subprocess.run(["gpg", "--batch", "--yes", "--local-user", key, "--armor", "--output", signature,
                               "--detach-sign", folder / checksums.NAME], capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("gpg is missing; install GnuPG (Debian's package gnupg)")
    if done.returncode != 0:
        signature.unlink(missing_ok=True)
        sys.exit(f"gpg has not signed with the key '{key}':\n{done.stderr.strip()}\n"
                 "`gpg --list-secret-keys` shows the keys that may sign")
    print(f"{signature}: signed by {key}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    sign(Path(sys.argv[1]), sys.argv[2])
