"""The driver of this machine, and hiding it from a process."""

import ctypes.util
import glob
import os
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


def hidden(driver, command):
    """The command in a mount namespace without the driver's libraries and device files."""
    folder = os.path.dirname(driver)
    if folder.startswith("/usr/local/nvidia"):
        hide = ["mount -t tmpfs none /usr/local/nvidia"]
    else:
        names = [n for p in ("libcuda*", "libnvidia*", "libnv*ptx*") for n in glob.glob(os.path.join(folder, p))]
        hide = [f"mount --bind /dev/null {n}" for n in names if os.path.isfile(n)]
    for device in glob.glob("/dev/nvidia*"):
        hide.append(f"mount -t tmpfs none {device}" if os.path.isdir(device) else f"mount --bind /dev/null {device}")
    return ["unshare", "-m", "--propagation", "private", "bash", "-c", "; ".join([*hide, 'exec "$@"']),
            "bash"] + command
