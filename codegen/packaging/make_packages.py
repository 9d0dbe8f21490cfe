"""Makes all packages of a build, the debug symbols of what is in them, and their checksums.

make_packages.py BUILD FOLDER CPACK VERSION"""

import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import checksums

BINARIES = ("bin/fargpu", "bin/fargpud", "bin/fargpu-worker", "lib/libcuda.so.1", "lib/libnvidia-ml.so.1",
            "server/softgpu/libfargpu-softgpu.so")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build_id(path):
    for line in run("readelf", "--wide", "--notes", path).splitlines():
        if "Build ID:" in line:
            return line.split()[-1]
    sys.exit(f"{path} has no build ID, by which debuggers find its symbols; link it with -Wl,--build-id")


def debug_symbols(build, archive, top):
    """By build ID, as debuggers look for them in /usr/lib/debug."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "w:gz") as tar:
        for name in BINARIES:
            number = build_id(build / name)
            part = Path(folder, number)
            run("objcopy", "--only-keep-debug", build / name, part)
            tar.add(part, f"{top}/lib/debug/.build-id/{number[:2]}/{number[2:]}.debug")


def main(build, folder, cpack, version):
    build, folder = Path(build), Path(folder)
    if not shutil.which("rpmbuild"):
        sys.exit("rpmbuild is missing; tests/install_packages installs it (Debian's package rpm)")
    shutil.rmtree(folder, ignore_errors=True)
    staging = folder / "staging"
    staging.mkdir(parents=True)
    for generator in ("DEB", "RPM", "TGZ"):
        # One generator at a time, since each has its own prefix. Modes do not depend on who builds.
        run("sh", "-c", 'umask 022; exec "$0" "$@"', cpack, "-G", generator, "--config", build / "CPackConfig.cmake",
            "-B", staging, cwd=build)
    made = [file for pattern in ("*.deb", "*.rpm", "*.tar.gz") for file in staging.glob(pattern)]
    for file in made:
        file.rename(folder / file.name)
    shutil.rmtree(staging)
    top = f"fargpu-debug-{version}-{platform.machine()}"
    debug_symbols(build, folder / f"{top}.tar.gz", top)
    checksums.write(folder)
    for file in checksums.packages(folder):
        print(f"{file.stat().st_size / 1e6:8.1f} MB  {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
