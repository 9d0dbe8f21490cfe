"""The driver of this machine, and hiding it from a process."""

import ctypes.util
import glob
import os
import subprocess
import sys


def driver_library():
    """The real driver's library, by path."""
    if os.environ.get("FARGPU_TEST_DRIVER"):
        return os.environ["FARGPU_TEST_DRIVER"]
    folders = os.environ.get("LD_LIBRARY_PATH",
                             "").split(":") + ["/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
    for folder in folders:
        path = os.path.join(folder, "libcuda.so.1")
        if folder and os.path.exists(path) and "compat" not in path:
            return os.path.realpath(path)
    found = ctypes.util.find_library("cuda")
    if found:
        return found
    sys.exit("no CUDA driver library on this machine")


class WithoutDriver:
    """A mount namespace without the driver's libraries and device files, for all programs that are to do without. It
    lasts as long as this process. Names of files are of one mount (docs/concepts/known-contents.md), so programs find
    those of earlier ones only where they share it."""

    def __init__(self, driver):
        folder = os.path.dirname(driver)
        if folder.startswith("/usr/local/nvidia"):
            hide = ["mount -t tmpfs none /usr/local/nvidia"]
        else:
            names = [n for p in ("libcuda*", "libnvidia*", "libnv*ptx*") for n in glob.glob(os.path.join(folder, p))]
            hide = [f"mount --bind /dev/null {n}" for n in names if os.path.isfile(n)]
        for device in glob.glob("/dev/nvidia*"):
            hide.append(f"mount -t tmpfs none {device}" if os.path.isdir(device) else
                        f"mount --bind /dev/null {device}")
        self.process = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "bash", "-c", "; ".join([*hide, "echo hidden", "exec cat"])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != b"hidden\n":
            sys.exit("no mount namespace can be made on this machine")

    def command(self, command):
        """What runs a command in that namespace, in the working directory that it is started in."""
        there = 'cd "$0" && exec "$@"'
        return ["bash", "-c", f"exec nsenter --target \"$0\" --mount -- bash -c '{there}' \"$PWD\" \"$@\"",
                str(self.process.pid), *command]
