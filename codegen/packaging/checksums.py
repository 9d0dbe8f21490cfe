"""SHA256SUMS, the checksums of the packages in a folder, as sha256sum reads them."""

import hashlib
from pathlib import Path

NAME = "SHA256SUMS"
ENDINGS = (".deb", ".rpm", ".tar.gz")


def packages(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.name.endswith(ENDINGS))


def of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def listed(folder: Path) -> dict[str, str]:
    """By the file's name."""
    sums = folder / NAME
    lines = sums.read_text().splitlines() if sums.exists() else []
    return {name: checksum for checksum, name in (line.split("  ", 1) for line in lines)}


def write(folder: Path) -> None:
    """Of all packages that lie there."""
    (folder / NAME).write_text("".join(f"{of(file)}  {file.name}\n" for file in packages(folder)))
