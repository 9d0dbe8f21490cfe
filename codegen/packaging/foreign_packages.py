"""Makes the client's packages for another architecture: .deb, .rpm and .tar.gz with the native packages' texts and
the binaries of a cross build.

foreign_packages.py NATIVE BINARIES ARCHITECTURE FOLDER

NATIVE has the packages of this machine. BINARIES has the other ones, stripped, in the places that they have in a
package (bin/fargpu, lib/fargpu/libcuda.so.1, ...). ARCHITECTURE is the name by `uname -m`. FOLDER gets the packages,
and their checksums."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import checksums

DEBIAN = {"aarch64": "arm64", "x86_64": "amd64"}  # the names of architectures there
ELF = b"\x7fELF"


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def native(folder, pattern):
    found = list(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"{folder} has {len(found)} packages {pattern}, and one is needed; run: "
                 "cmake --build build --target packages")
    return found[0]


def exchange(prefix, binaries):
    """Puts the other binaries in place of the native ones, of which none must be left."""
    for file in prefix.rglob("*"):
        if file.is_symlink() or not file.is_file():
            continue
        with file.open("rb") as start:
            if start.read(len(ELF)) != ELF:
                continue
        other = binaries / file.relative_to(prefix)
        if not other.is_file():
            sys.exit(f"{binaries} has no {file.relative_to(prefix)}, which the package needs; build it too")
        shutil.copyfile(other, file)  # and keep the mode


def make_deb(package, binaries, architecture, folder):
    """Returns the tree of what is installed below /usr."""
    tree = folder / "deb"
    run("dpkg-deb", "--raw-extract", package, tree)
    exchange(tree / "usr", binaries)
    control = tree / "DEBIAN" / "control"
    control.write_text(re.sub(r"(?m)^Architecture: .*$", f"Architecture: {DEBIAN[architecture]}", control.read_text()))
    files = sorted(file.relative_to(tree) for file in (tree / "usr").rglob("*") if file.is_file())
    (tree / "DEBIAN" / "md5sums").write_text(run("md5sum", *files, cwd=tree))
    name = re.sub(r"_[^_]*\.deb$", f"_{DEBIAN[architecture]}.deb", package.name)
    run("dpkg-deb", "--root-owner-group", "--build", tree, folder / name)
    return tree / "usr"


def make_rpm(package, usr, architecture, folder):
    def ask(form):
        return run("rpm", "--query", "--package", "--queryformat", form, package)

    files = "\n".join(("%dir " if line.startswith("d") else "") + line.split(" ", 1)[1]
                      for line in ask("[%{FILEMODES:perms} %{FILENAMES}\n]").splitlines())
    needs = [need for need in ask("[%{REQUIRENEVRS}\n]").splitlines() if not need.startswith("rpmlib(")]
    head = ask("Name: %{NAME}\nVersion: %{VERSION}\nRelease: %{RELEASE}\nSummary: %{SUMMARY}\nLicense: %{LICENSE}\n"
               "Group: %{GROUP}\nVendor: %{VENDOR}\n")
    spec = folder / "client.spec"
    spec.write_text(f"""%define _build_id_links none
%define __os_install_post %{{nil}}
%define debug_package %{{nil}}
{head}{"".join(f"Requires: {need}" + chr(10) for need in needs)}AutoReqProv: no
%description
{ask("%{DESCRIPTION}")}
%install
mkdir -p %{{buildroot}}/usr
cp -a {usr}/. %{{buildroot}}/usr
%files
%defattr(-,root,root,-)
{files}
""")
    run("rpmbuild", "-bb", "--target", f"{architecture}-linux", "--define", f"_topdir {folder / 'rpm'}", "--define",
        f"_rpmdir {folder}", "--define", "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm", spec)


def make_archive(package, binaries, architecture, folder):
    tree = folder / "archive"
    with tarfile.open(package) as tar:
        tar.extractall(tree)
    top, = tree.iterdir()
    exchange(top, binaries)
    other = top.rename(tree / re.sub(r"-[^-]*$", f"-{architecture}", top.name))

    def owned_by_root(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        return entry

    name = re.sub(r"-[^-]*\.tar\.gz$", f"-{architecture}.tar.gz", package.name)
    with tarfile.open(folder / name, "w:gz") as tar:
        tar.add(other, other.name, filter=owned_by_root)


def main(packages, binaries, architecture, folder):
    packages, binaries, folder = Path(packages), Path(binaries).resolve(), Path(folder)
    if architecture not in DEBIAN:
        sys.exit(f"'{architecture}' is none of {', '.join(DEBIAN)}")
    folder.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    here = os.uname().machine
    with tempfile.TemporaryDirectory() as made:
        made = Path(made)
        usr = make_deb(native(packages, f"fargpu-client_*_{DEBIAN[here]}.deb"), binaries, architecture, made)
        make_rpm(native(packages, f"fargpu-client-*.{here}.rpm"), usr, architecture, made)
        make_archive(native(packages, f"fargpu-client-*-{here}.tar.gz"), binaries, architecture, made)
        for file in checksums.packages(made):
            shutil.move(file, folder / file.name)
            print(folder / file.name)
    checksums.write(folder)


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    main(*sys.argv[1:])
