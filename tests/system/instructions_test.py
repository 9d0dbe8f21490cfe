"""What a call costs the thread of the program that makes it, in instructions, watched against growth. See
programs/counted.cpp.

    /usr/bin/python3 tests/system/instructions_test.py --renew

writes the figures, to instructions.md, after a change that is worth what it costs."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rig import Broker, paths  # noqa: E402

FIGURES = Path(__file__).resolve().parent / "instructions.md"
CALLS = 200  # of a kind, and then twice as many
GROWTH = 0.10  # that is let pass: another compiler of the same release
# How many sends fall among the calls counted depends on what the other threads do just then; the least is what must not
# grow.
ATTEMPTS = 5
TRANSPORTS = ("tcp", "shm")
COLUMNS = ("instructions by TCP", "by shared memory", "clock reads", "allocations")
HEAD = f"""# What a call costs the program's thread

Instructions in the client library, and in the C library for it, of one call by the thread that makes it; how often the
call reads the clock, and how often it asks for memory. Counted by callgrind: the difference of {CALLS} and
{2 * CALLS} calls, on the recording fake driver. The service thread and waiting are not counted. `system.instructions`
of ctest allows {GROWTH:.0%} more. Written by `tests/system/instructions_test.py --renew`.

"""


def measure(transport):
    """{call: (instructions, clock reads, allocations)}"""
    program = paths.PROGRAMS / "counted"
    broker = Broker()
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--separate-threads=yes",
                 "--dump-after=counting_begins", "--dump-after=counting_ends", program, str(CALLS)],
                # Of the C library's copying routines those that every processor has.
                env={**os.environ, "FARGPU_POOL": broker.pool, "LD_LIBRARY_PATH": str(paths.LIBRARIES),
                     "FARGPU_TRANSPORT": transport,
                     "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX,-AVX512VL,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM"},
                capture_output=True, text=True, timeout=120, check=False)
            if done.returncode != 0:
                raise AssertionError(f"counted ended with {done.returncode}: {done.stdout}{done.stderr}")
            result = {}
            for number, line in enumerate(done.stdout.splitlines()):
                call, clock, allocations = line.split("\t")
                # Four files a kind, each for what came since the one before. The first thread is the program's.
                once, twice = (instructions(Path(folder, f"out.{4 * number + n}-01")) for n in (2, 4))
                result[call] = ((twice - once) / CALLS, int(clock) / CALLS, int(allocations) / CALLS)
            return result
    finally:
        broker.close()


def grown(before, now):
    """What costs more than it did, a line each."""
    lines = []
    for call, figures in before.items():
        current = (now["tcp"][call][0], now["shm"][call][0], *now["tcp"][call][1:])
        for column, was, is_now in zip(COLUMNS, figures, current):
            # A tenth of a clock read, or two instructions, is what rounding leaves.
            if is_now > was * (1 + GROWTH) + (2 if "instructions" in column or "memory" in column else 0.1):
                lines.append(f"{call}: {column}: {is_now:.1f}, was {was:.1f}")
    return lines


def least(one, other):
    return {transport: {call: tuple(map(min, figures, other[transport][call])) for call, figures in calls.items()}
            for transport, calls in one.items()}


def instructions(file):
    return int(re.search(r"^totals: (\d+)", file.read_text(), re.MULTILINE).group(1))


def table(measured):
    rows = [f"| call | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for call, (tcp, clock, allocations) in measured["tcp"].items():
        rows.append(f"| {call} | {tcp:.0f} | {measured['shm'][call][0]:.0f} | {clock:.1f} | {allocations:.1f} |")
    return "\n".join(rows) + "\n"


def kept():
    """{call: figures} as they stand in the repository."""
    rows = (line.strip("| ").split(" | ") for line in FIGURES.read_text().splitlines() if line.startswith("| "))
    return {row[0]: [float(figure) for figure in row[1:]] for row in rows if row[0] != "call"}


class Instructions(unittest.TestCase):
    def test_no_call_costs_more_than_it_did(self):
        self.assertTrue(shutil.which("valgrind"), "valgrind is missing: tests/install_packages installs it")
        now = {transport: measure(transport) for transport in TRANSPORTS}
        before = kept()
        self.assertEqual(sorted(now["tcp"]), sorted(before),
                         "other calls are counted than instructions.md has: renew it")
        for _ in range(ATTEMPTS - 1):
            if not grown(before, now):
                return
            now = least(now, {transport: measure(transport) for transport in TRANSPORTS})
        self.assertFalse(grown(before, now),
                         "\n".join(["calls cost their thread more than before; if that is worth it, "
                                    "/usr/bin/python3 tests/system/instructions_test.py --renew:",
                                    *grown(before, now)]))


if __name__ == "__main__":
    if sys.argv[1:] == ["--renew"]:
        FIGURES.write_text(HEAD + table({transport: measure(transport) for transport in TRANSPORTS}))
    else:
        unittest.main()
