"""A broker is killed at one of its steps, each time a little later: while a session begins, while it hands over, while
it takes over, while a client comes back, and while memory is evicted. The next broker has the sessions and nothing
else in its books, their memory is what it was, and a program that was about to begin has a session, from either of the
two. A job hears at least why it has none.

Some places are tried, evenly; FARGPU_FAULTS=all tries each, and says how many there are."""

import contextlib
import os
import signal
import socket
import sys
import tempfile
import unittest
from pathlib import Path

from rig import SystemTest, paths, wait_until
from rig.broker import settings_file
from rig.mortal import NEXT_BROKER, Order
from rig.proxy import Proxy

MIB = 1 << 20
TCP = {"FARGPU_TRANSPORT": "tcp"}
EVERY_PLACE = os.environ.get("FARGPU_FAULTS") == "all"

MEMORY = 512 * MIB  # that the tenant may have
SETTINGS = f'[tenant.default]\nmemory = "{MEMORY // MIB}MiB"\nsessions = 6\nadministrator = true\n'
COMMANDS = ("init", "context", f"alloc a {MIB}", "write a 3", "check a", "exit 0")
# What the user of `fargpu run` is told, which asks once.
REFUSED = ("fargpud has been shut down, or has ended; try again later|is fargpud running there and FARGPU_POOL right|"
           "during the handshake; is it fargpud")

# Starts a program with the listening socket that is its descriptor of this number, as a service manager does.
GIVE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""


@unittest.skipIf(paths.SANITIZED, "a sanitizer's runtime is to be the first library that is loaded")
class StepsTest(SystemTest):
    """A host whose broker can be killed at a step, and sessions that it has."""

    DRIVER = paths.FAKE_DRIVER
    DEVICE_MEMORY = "1GiB"
    OPTIONS = ()
    PLACES = 8  # of one kind, if not all

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # By this path the workers of this test are known from those of others.
        self.driver = self.folder / "driver.so"
        self.driver.symlink_to(self.DRIVER)
        self.order = Order(self.folder / "order")
        self.addCleanup(self.order.close)
        settings = contextlib.ExitStack()
        self.addCleanup(settings.close)
        self.settings = settings.enter_context(settings_file(SETTINGS))
        self.environment = {**self.order.environment, "FARGPU_SOFTGPU_MEMORY": self.DEVICE_MEMORY,
                            "FARGPU_SOFTGPU_THREADS": "1", "FARGPU_SOFTGPU_SHARED": str(self.folder / "devices")}
        self.listener = None
        self.port = 0
        self.clients = []
        self.start_broker()

    def keep_listening(self):
        """From the next broker on, clients that come while there is none wait for one."""
        self.stop_broker()
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.addCleanup(self.listener.close)
        self.start_broker()

    def start_broker(self):
        more = {}
        if self.listener:
            number = self.listener.fileno()
            more = {"keep": [number], "wrapper": (sys.executable, "-c", GIVE, str(number))}
        self.host = self.broker(*self.options(), driver=self.driver, port=self.port, config=self.settings,
                                env=self.environment, **more)
        self.port = self.host.port

    def options(self):
        return ("--runtime-folder", str(self.folder / "sessions"), *self.OPTIONS)

    def stop_broker(self):
        self.host.process.kill()
        self.host.wait(output=False)  # its workers write to the same stderr

    def session(self, *commands, pool=None, **more):
        client = self.client(pool or self.host, "init", "context", *commands, **more)
        self.worker_of(self.host, client)
        self.clients.append(client)
        return client

    def workers(self):
        """Process ids of all workers of this test's brokers."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                arguments = (process / "cmdline").read_bytes().split(b"\0")
                if arguments[0].endswith(b"fargpu-worker") and str(self.driver).encode() in arguments:
                    found.append(int(process.name))
        return found

    def doors(self):
        return list((self.folder / "sessions").glob("worker-*"))

    def books(self):
        """What the broker says that there is, and what is there."""
        status = self.host.status()
        sessions = status["sessions"]
        on_devices = sum(sum(session["memory_bytes"]) - session["away_bytes"] for session in sessions)
        return {"sessions": {session["pid"]: (session["id"], sum(session["memory_bytes"])) for session in sessions},
                "states": sorted(session["state"] for session in sessions),
                "sessions_taken": status["sessions_taken"],
                "leases": sum(lease["sessions"] for lease in status["leases"]),
                "idle_leases": sum(lease["sessions"] == 0 for lease in status["leases"]),
                "waiting": len(status["waiting"]),
                "used_by_nobody": sum(device["used_bytes"] for device in status["devices"]) - on_devices,
                "warm": status["warm_workers"], "workers": len(self.workers()), "doors": len(self.doors())}

    def settle(self):
        """The books when all is quiet, which they will have to be again."""
        number = len(self.clients)
        wait_until(lambda: self.books()["workers"] == self.books()["doors"] == number + 1, "a warm worker and no more")
        wait_until(lambda: self.host.status()["warm_workers"] == 1, "a warm worker")
        self.wanted = self.books()
        self.assertEqual(sorted(self.wanted["sessions"]), sorted(client.pid for client in self.clients))
        self.assertEqual((self.wanted["leases"], self.wanted["sessions_taken"], self.wanted["idle_leases"]),
                         (number, number, 0))
        self.assertEqual(self.wanted["used_by_nobody"], 0)

    def await_quiet(self):
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self.books() == self.wanted, "the books")
        self.assertEqual(self.books(), self.wanted)

    def check(self):
        """All sessions are there, and nothing else."""
        self.await_quiet()
        for client in self.clients:
            self.assert_lives(client)
        left = MEMORY - sum(used for _, used in self.wanted["sessions"].values())
        self.assert_left(left)

    def assert_left(self, left):
        """Just so much of the tenant's quota is left, and a session can begin."""
        probe = self.client(self.host, "init", "context", f"alloc a {left}")
        self.assertEqual(probe.ask(f"alloc b {2 * MIB}"), "OUT_OF_MEMORY")
        self.assertEqual(probe.finish(), 0)
        probe.close()

    def at_each_place(self, interrupt):
        """`interrupt(place)` strikes a broker there."""
        interrupt(0)
        places = self.order.places
        self.assertGreater(places, 10)  # how many there are differs by a few from one time to the next
        # An odd stride, by which places before calls and places behind them take turns.
        tried = range(1, places + 1, 1 if EVERY_PLACE else max(1, places // self.PLACES) | 1)
        struck = 0
        for place in tried:
            try:
                interrupt(place)
            except AssertionError as error:
                raise AssertionError(f"place {place} of {places}, {self.order}: {error}") from error
            struck += self.order.struck
        if EVERY_PLACE:
            print(f"{places} places, struck at {struck}", file=sys.stderr)
        self.assertGreater(struck, len(tried) / 2)

    def strike_while(self, begin, number=signal.SIGKILL):
        """`begin()` begins something, and gives two functions: whether that is over, where no broker is struck, and
        what looks at how it ended."""
        def interrupt(place):
            self.await_quiet()
            self.order.give(self.host.pid, place, number)
            over, look = begin()
            wait_until(lambda: not self.host.process.running() or over(), "its end")
            self.order.take_back()
            if self.order.struck or not self.host.process.running():
                code = self.host.wait(output=False)
                self.assertEqual(code, -signal.SIGKILL if self.order.struck and number == signal.SIGKILL else 0)
                self.start_broker()
            look()
            self.check()
        self.settle()
        self.at_each_place(interrupt)

    def look_at(self, client, may_be_refused=False):
        """A program that has made all its calls, or that `fargpu run` has not started, with one line."""
        code = client.process.wait()
        answers, errors = client.process.out.seen, client.errors()
        if may_be_refused and not answers:
            self.assertIn(code, (75, 125))
            self.assertRegex(errors, REFUSED)
            self.assertEqual(len(errors.splitlines()), 1, errors)
        else:
            self.assertEqual(code, 0)
            self.assertEqual({answer.split()[0] for answer in answers}, {"SUCCESS"}, f"{answers} {errors}")
            self.assertEqual(len(answers), len(COMMANDS) - 1)
        client.close()

    def begin_session(self, **more):
        client = self.client(self.host, **more)
        with contextlib.suppress(BrokenPipeError):
            for command in COMMANDS:
                client.begin(command)
        return client


class Sessions(StepsTest):
    OPTIONS = ("--resume-seconds", "60")

    def setUp(self):
        super().setUp()
        self.session(f"alloc a {MIB}", "scatter a 17")

    def while_a_session_begins(self, number=signal.SIGKILL, **more):
        def begin():
            start = self.host.place()
            client = self.begin_session(**more)

            def over():
                return (self.host.logged("session ended", start) and self.host.logged("worker ready", start) and
                        len(self.doors()) == len(self.clients) + 1 and not client.process.running())
            return over, lambda: self.look_at(client, "through_run" in more and self.order.struck)
        self.strike_while(begin, number)

    def test_a_session_begins_and_ends(self):
        self.while_a_session_begins()

    def test_a_job_begins_and_ends(self):
        self.while_a_session_begins(through_run=True, env={"FARGPU_MEM": "32MiB", "FARGPU_GPUS": "1"})

    def test_it_leaves_while_a_session_begins_and_ends(self):
        self.keep_listening()
        self.while_a_session_begins(signal.SIGUSR1)

    def test_it_is_killed_while_it_leaves(self):
        self.keep_listening()

        def begin():
            client = self.begin_session()
            wait_until(lambda: self.order.places or self.order.struck, "a client")
            self.host.process.signal(signal.SIGUSR1)
            return lambda: False, lambda: self.look_at(client)
        self.strike_while(begin)

    def test_a_client_comes_back(self):
        proxy = Proxy(self.host)
        self.addCleanup(proxy.close)
        client = self.session(f"alloc a {MIB}", "scatter a 5", pool=proxy.pool, env=TCP)

        def begin():
            start = self.host.place()
            proxy.cut()
            client.begin("check a")
            return (lambda: self.host.logged("session resumed", start),
                    lambda: self.assertEqual(client.answer(), "SUCCESS same"))
        self.strike_while(begin)


class OnTheSoftwareGpu(StepsTest):
    DRIVER = paths.SOFTWARE_GPU

    def test_it_takes_over(self):
        maker = self.session(f"alloc a {8 * MIB}", "scatter a 17")
        holder, heir = self.session(f"alloc a {MIB}", "scatter a 1"), self.session(f"alloc a {MIB}", "scatter a 2")
        gone = self.session(f"alloc a {4 * MIB}", "write a 4")
        theirs = gone.must("export a").split()[1]
        for client in (holder, heir):
            client.must(f"alloc shared {8 * MIB}")
            client.must("free shared")
            client.must(f"open shared {maker.must('export a').split()[1]}")
        heir.must(f"open inherited {theirs}")
        self.clients.remove(gone)
        self.assertEqual(gone.finish(), 0)
        self.settle()

        def interrupt(place):
            self.stop_broker()
            self.order.give(NEXT_BROKER, place)
            next_broker = self.start([paths.FARGPUD, "--driver", self.driver, "--listen", f"127.0.0.1:{self.port}",
                                      "--image-folder", "", "--config", self.settings, *self.options()],
                                     env=self.environment)
            wait_until(lambda: not next_broker.running() or any(" listening " in line for line in next_broker.err.seen),
                       "its end, or that it listens")
            self.order.take_back()
            next_broker.kill()
            next_broker.wait(output=False)
            self.start_broker()
            self.check()
        self.at_each_place(interrupt)


class Eviction(StepsTest):
    DRIVER = paths.SOFTWARE_GPU
    DEVICE_MEMORY = "256MiB"
    OPTIONS = ("--evicted-bytes-max", "4GiB", "--evict-quantum-seconds", "1", "--warm-context=false")
    PLACES = 5

    def assert_left(self, left):
        pass  # the device has less than the quota

    def test_memory_is_evicted_by_request(self):
        client = self.session("load", f"alloc a {40 * MIB}", "scatter a 7")
        self.settle()
        session = self.wanted["sessions"][client.pid][0]

        def begin():
            start, asked = self.host.place(), []
            evict = self.start([paths.FARGPU, "evict", str(session)], env={"FARGPU_POOL": self.host.pool})

            def ask():
                if not asked:
                    asked.append(client.begin("check a"))

            def over():
                if not evict.running():
                    ask()
                return self.host.logged("session returned", start)

            def look():
                self.assertIn(evict.wait(), (0, 125) if self.order.struck else (0,))
                ask()
                self.assertEqual(client.answer(), "SUCCESS same")
            return over, look
        self.strike_while(begin)

    def test_sessions_take_turns_in_the_memory(self):
        for number in range(2):
            self.session("load", f"alloc a {150 * MIB}", f"scatter a {number}")

        def begin():
            start, client = self.host.place(), self.clients[0]  # the other one was at work last
            client.begin("check a")
            return (lambda: self.host.logged("session returned", start),
                    lambda: self.assertEqual(client.answer(), "SUCCESS same"))
        self.strike_while(begin)


if __name__ == "__main__":
    unittest.main()
