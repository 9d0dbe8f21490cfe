"""Brokers that are struck by a signal at one of their steps: see programs/mortal.cpp."""

import mmap
import signal
import struct

from . import paths

LIBRARY = paths.PROGRAMS / "libfargpu-mortal.so"
NEXT_BROKER = -1


class Order:
    """What programs/mortal.cpp reads, in a file."""

    FORMAT = struct.Struct("<iIQQiI24s")

    def __init__(self, path):
        path.write_bytes(bytes(mmap.PAGESIZE))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.environment = {"LD_PRELOAD": str(LIBRARY), "FARGPU_MORTAL": str(path)}

    def give(self, process, place=0, number=signal.SIGKILL):
        """Calls of this process count from now on, and it is struck by a signal of this number at this place: before
        the first call, behind it, before the second, and so on; 0: at none."""
        behind = 0 if place % 2 else 1
        self._memory[:self.FORMAT.size] = self.FORMAT.pack(0, behind, (place + 1) // 2, 0, number, 0, b"")
        self._memory[:4] = struct.pack("<i", process)

    def take_back(self):
        self._memory[:4] = bytes(4)

    @property
    def places(self):
        """Of the calls that have counted."""
        return 2 * self.FORMAT.unpack_from(self._memory)[3]

    @property
    def struck(self):
        return bool(self.FORMAT.unpack_from(self._memory)[5])

    def __str__(self):
        _, behind, at, _, _, _, call = self.FORMAT.unpack_from(self._memory)
        return f"{'behind' if behind else 'before'} call {at}, {call.rstrip(bytes(1)).decode() or 'which never came'}"

    def close(self):
        self._memory.close()
