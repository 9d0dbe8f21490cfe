"""A short program, again and again, with one thing going wrong each time a little later: an allocation of the worker's
fails, one of the client's, or the worker is killed at a call of the driver. The program comes to its end, hears of a
clean error, and the broker serves the next.

Some places are tried, evenly; FARGPU_FAULTS=all tries each."""

import mmap
import os
import re
import struct
import tempfile
import unittest
from pathlib import Path

from rig import SystemTest, paths, wait_gone, wait_until

MIB = 1 << 20
LIBRARY = paths.PROGRAMS / "libfargpu-strike.so"
ALLOCATION, DRIVER_CALL = 1, 2
EVERY_PLACE = os.environ.get("FARGPU_FAULTS") == "all"
PLACES = 24  # of one kind, if not all

COMMANDS = ("init", "context", "load", f"alloc a {MIB}", "write a 1", "launch a", "sync", "write a 2", "check a",
            f"alloc b {4 * MIB}", "write b 3",
            "pin b", "write_pinned b", "sync", "check b", "free b", "free a", "sync", "exit 5")
LOST = "DEVICE_UNAVAILABLE"
# What may be heard first; what follows from a call that failed has CUDA's own names.
FIRST = ("OUT_OF_MEMORY", LOST, "SYSTEM_NOT_READY")


class Order:
    """What programs/strike.cpp reads."""

    FORMAT = struct.Struct("<IiQQI")

    def __init__(self, path):
        path.write_bytes(bytes(mmap.PAGESIZE))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def give(self, what, at, process=0):
        self._memory[:self.FORMAT.size] = self.FORMAT.pack(0, process, at, 0, 0)
        self._memory[:4] = struct.pack("<I", what)

    @property
    def count(self):
        return self.FORMAT.unpack_from(self._memory)[3]

    @property
    def struck(self):
        return bool(self.FORMAT.unpack_from(self._memory)[4])

    def close(self):
        self._memory.close()


@unittest.skipIf(paths.SANITIZED, "sanitizers have allocators of their own")
class Strikes(SystemTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name, "order")
        self.order = Order(path)
        self.addCleanup(self.order.close)
        self.striking = {"LD_PRELOAD": str(LIBRARY), "FARGPU_TEST_STRIKE": str(path)}

    def start_broker(self, **env):
        self.host = self.broker(env=env)
        self.neighbour = self.client(self.host, "init", "context", f"alloc a {MIB}", "write a 17")
        self.neighbours_worker = self.worker_of(self.host, self.neighbour)

    def worker(self):
        """The one that the next session will have, when it is ready."""
        def ready():
            told = {int(fields["worker"]) for fields in self.host.logged("worker ready")}
            return [pid for pid in self.host.workers() if pid in told and pid != self.neighbours_worker]
        return wait_until(ready, "a warm worker")[0]

    def run_program(self, **env):
        """Its answers, up to its end."""
        client = self.client(self.host, env=env)
        try:
            for command in COMMANDS:
                client.begin(command)
        except BrokenPipeError:
            pass
        self.assertEqual(client.process.wait(), 5, client.errors())
        for line in client.errors().splitlines():
            self.assertRegex(line, r"^fargpu: (error|warning): ")
        answers = client.process.out.seen
        self.assertEqual(len(answers), len(COMMANDS) - 1)
        client.close()
        return answers, client.errors()

    def assert_clean(self, answers):
        self.assertNotIn("SUCCESS different", answers)
        errors = [answer for answer in answers if not answer.startswith("SUCCESS")]
        if errors:
            self.assertIn(errors[0], FIRST, answers)
        if LOST in answers:  # and from then on always
            self.assertEqual(set(answers[answers.index(LOST):]), {LOST}, answers)

    def places(self, count):
        self.assertGreater(count, 50)
        return range(1, count + 1, 1 if EVERY_PLACE else max(1, count // PLACES))

    def each_worker(self, what, check):
        worker = self.worker()
        self.order.give(what, 0, worker)
        answers, _ = self.run_program()
        self.assertEqual({answer.split()[0] for answer in answers}, {"SUCCESS"}, answers)
        wait_gone(worker)
        struck = 0
        for place in self.places(self.order.count):
            with self.subTest(place=place):
                worker = self.worker()
                self.order.give(what, place, worker)
                answers, errors = self.run_program()
                wait_gone(worker)
                struck += self.order.struck
                self.assert_clean(answers)
                check(worker, answers, errors)
        self.assertGreater(struck, 0)
        self.assert_lives(self.neighbour)
        wait_until(lambda: [s["pid"] for s in self.host.sessions()] == [self.neighbour.pid],
                   "only the neighbour's session")

    def test_an_allocation_of_the_worker_fails(self):
        self.start_broker(**self.striking)
        self.each_worker(ALLOCATION,
                         lambda worker, answers, errors: self.assertNotIn(
                             str(worker), [d["worker"] for d in self.host.logged("worker died")]))

    def test_the_worker_is_killed_at_a_call_of_the_driver(self):
        def check(_, answers, errors):
            if not self.order.struck:
                return
            if answers[-1] == "SUCCESS":  # it had no call left to make
                self.assertEqual(errors, "")
            else:
                # A lane may notice first that its worker is gone.
                errors = re.sub("^fargpu: warning: large copies go by one connection: .*\n", "", errors)
                self.assertEqual(errors.count("\n"), 0, errors)
                self.assertRegex(errors, "the session is lost" if LOST in answers else self.host.pool)

        self.start_broker(**self.striking)
        self.each_worker(DRIVER_CALL, check)

    def test_an_allocation_of_the_client_fails(self):
        self.start_broker()
        striking = {**self.striking, "FARGPU_TEST_STRIKE_OBJECT": "libcuda.so.1"}
        self.order.give(ALLOCATION, 0)
        answers, _ = self.run_program(**striking)
        self.assertEqual({answer.split()[0] for answer in answers}, {"SUCCESS"}, answers)
        for place in self.places(self.order.count):
            with self.subTest(place=place):
                self.worker()
                self.order.give(ALLOCATION, place)
                answers, _ = self.run_program(**striking)
                self.assert_clean(answers)
        self.assert_lives(self.neighbour)
        wait_until(lambda: [s["pid"] for s in self.host.sessions()] == [self.neighbour.pid],
                   "only the neighbour's session")


if __name__ == "__main__":
    unittest.main()
