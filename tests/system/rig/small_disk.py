"""A disk of a few pages that tests can fill: a tmpfs in a mount namespace of its own, which ends with it."""

import os
import subprocess

from .process import Finished, environment

# Without root, a user namespace in which the caller is root.
_SPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
_ENTER = ["nsenter", "--mount"] if os.geteuid() == 0 else ["nsenter", "--user", "--preserve-credentials", "--mount"]


def possible():
    """Whether this machine lets the caller mount one."""
    return subprocess.run([*_SPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0


class SmallDisk:
    """`path` is the disk for processes that run() starts; `seen` is the same folder for the test itself."""

    def __init__(self, folder, size):
        self.path = folder
        self._holder = subprocess.Popen(
            [*_SPACE, "sh", "-c", 'mount -t tmpfs -o size="$1" tmpfs "$0" && echo mounted && exec sleep infinity',
             folder, size],
            stdout=subprocess.PIPE, text=True)
        if self._holder.stdout.readline() != "mounted\n":
            self.close()
            raise AssertionError(f"no tmpfs of {size} could be mounted at {folder}")
        self.seen = type(folder)(f"/proc/{self._holder.pid}/root{folder}")

    @property
    def enter(self):
        """What starts a command there."""
        return [*_ENTER, f"--target={self._holder.pid}"]

    def run(self, *arguments, env=None, seconds=60):
        done = subprocess.run([*self.enter, *map(str, arguments)], env=environment(env), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
        return Finished(done.returncode, done.stdout, done.stderr)

    def fill(self, but=0):
        """Leaves this many bytes free, in whole pages."""
        self.empty()
        with open(self.seen / "filler", "wb", buffering=0) as filler:
            try:
                while filler.write(bytes(4096)):
                    pass
            except OSError:
                pass
            filler.truncate(os.fstat(filler.fileno()).st_size // 4096 * 4096 - but)

    def empty(self):
        (self.seen / "filler").unlink(missing_ok=True)

    def close(self):
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()
