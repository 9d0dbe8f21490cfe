"""kill -9 of workers: the client hears of it, the broker replaces it, and nobody else notices."""

import contextlib
import os
import signal
import tempfile
import time
import unittest
from pathlib import Path

from rig import PATIENCE, SystemTest, fargpu, paths, wait_gone, wait_until

MIB = 1 << 20
LOST = "DEVICE_UNAVAILABLE"


class OfASession(SystemTest):
    def setUp(self):
        self.host = self.broker()
        self.neighbour = self.client(self.host, "init", "context", f"alloc a {MIB}", "write a 17")
        self.victim = self.client(self.host, "init", "context", "load", f"alloc a {16 * MIB}", "write a 1")
        self.worker = self.worker_of(self.host, self.victim)

    def kill(self):
        os.kill(self.worker, signal.SIGKILL)

    def wait_in(self, command):
        self.victim.begin(f"announce {command}")
        self.assertEqual(self.victim.answer(), "begun")
        wait_until(lambda: asleep(self.victim.pid), "the client waits")

    def assert_lost_in_good_order(self):
        """Every call says the same at once, one line has said why, and the program can end. All else goes on."""
        for command in ("sync", "alloc b 1048576", "check a", "launch a", "free a", "context", "sync"):
            self.assertEqual(self.victim.ask(command), LOST, command)
        self.assertEqual(self.victim.ask("init"), LOST)
        self.assertEqual(self.victim.finish(), 0)
        self.assertEqual(self.victim.errors().count("\n"), 0, self.victim.errors())
        self.assertIn("the session is lost", self.victim.errors())
        self.assertIn("start the program again", self.victim.errors())

        died = self.host.log("worker died", worker=self.worker)
        self.assertEqual((died["how"], died["session"]), ("signal 9", "2"))
        self.assertEqual(self.host.log("session ended", worker=self.worker)["reason"], "its worker died (signal 9)")
        wait_until(lambda: [s["pid"] for s in self.host.sessions()] == [self.neighbour.pid],
                   "only the neighbour's session")
        self.assertEqual(self.neighbour.ask("check a"), "SUCCESS same")
        wait_until(lambda: self.host.status()["warm_workers"] == 1, "a warm worker")
        self.client(self.host, "init", "context")

    def test_while_the_client_does_nothing(self):
        self.kill()
        wait_gone(self.worker)
        self.assert_lost_in_good_order()

    def test_the_client_says_so_without_a_call(self):
        self.kill()
        self.victim.says("the session is lost")

    def test_while_the_client_waits_for_an_answer(self):
        os.kill(self.worker, signal.SIGSTOP)
        self.wait_in("check a")
        self.kill()
        self.assertEqual(self.victim.answer(), LOST)
        self.assert_lost_in_good_order()

    def test_while_the_client_cannot_send(self):
        # what is on its way fills all that lies between, however much that is
        self.victim.begin_loop("write_forever a")
        os.kill(self.worker, signal.SIGSTOP)
        wait_until(lambda: asleep(self.victim.pid), "the client waits")
        self.kill()
        self.assertEqual(self.victim.answer(), LOST)
        self.assert_lost_in_good_order()

    def test_in_a_stream_of_copies_in(self):
        self.under_way("write_forever a")

    def test_in_a_stream_of_copies_out(self):
        self.under_way("read_forever a")

    def test_in_a_stream_of_launches(self):
        self.under_way("launch_forever a")

    def under_way(self, command):
        self.victim.begin_loop(command)
        self.kill()
        self.assertEqual(self.victim.answer(), LOST)
        self.assert_lost_in_good_order()

    def test_with_launches_that_nobody_waited_for(self):
        self.victim.must("launch a")  # the first of a kernel is waited for
        os.kill(self.worker, signal.SIGSTOP)
        for _ in range(5):
            self.victim.must("launch a")
        self.kill()
        wait_gone(self.worker)
        self.assertEqual(self.victim.ask("sync"), LOST)
        self.assert_lost_in_good_order()


class AtAnyMoment(SystemTest):
    def test_of_a_programs_life(self):
        """A program that starts, works and ends; each time its worker dies a little later."""
        host = self.broker()
        for milliseconds in range(0, 24, 2):
            client = self.client(host)
            worker = wait_until(host.workers, "a warm worker")[-1]
            for command in ("init", "context", "load", f"alloc a {MIB}", "write a 1", "launch a", "check a", "sync",
                            "exit 5"):
                client.begin(command)
            time.sleep(milliseconds / 1000)  # not a wait for anything: the moment at which the worker dies
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            self.assertEqual(client.process.wait(), 5)
            for line in client.errors().splitlines():
                # A lane may notice first that its worker is gone.
                self.assertRegex(line, r"^fargpu: (error: .*(the session is lost|127\.0\.0\.1)|"
                                       r"warning: large copies go by one connection: )")
            # The others, at their start, are not what was hit.
            wait_until(lambda: host.status()["warm_workers"] == 1, "a warm worker")

    def test_before_it_has_answered_the_attach(self):
        host = self.broker()
        worker = wait_until(host.workers, "a warm worker")[0]
        os.kill(worker, signal.SIGSTOP)
        client = self.client(host)
        client.begin("init")
        host.log("session started", worker=worker)
        os.kill(worker, signal.SIGKILL)
        self.assertEqual(client.answer(), "SYSTEM_NOT_READY")
        client.says(host.pool)
        # A failed cuInit stays failed; the program may go on without a GPU.
        self.assertEqual(client.ask("init"), "SYSTEM_NOT_READY")
        self.assertEqual(client.ask("count"), "NOT_INITIALIZED -1")
        self.assertEqual(client.finish(), 0)


class WithoutASession(SystemTest):
    def gated_broker(self, *options):
        """A broker whose workers start only while a file is not there: (broker, file)."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        gate, script = Path(folder.name, "gate"), Path(folder.name, "worker")
        script.write_text(f'#!/bin/sh\nwhile [ -e {gate} ]; do sleep 0.02; done\nexec '
                          f'{paths.FARGPUD.parent}/fargpu-worker "$@"\n',
                          encoding="utf-8")
        script.chmod(0o755)
        host = self.broker("--worker", script, *options)
        self.addCleanup(lambda: gate.unlink(missing_ok=True))
        return host, gate

    def test_a_warm_one_is_replaced(self):
        host = self.broker()
        worker = wait_until(host.workers, "a warm worker")[0]
        place = host.place()
        os.kill(worker, signal.SIGKILL)
        host.log("worker died", worker=worker)
        host.log("worker ready", start=place)
        self.client(host, "init", "context")

    def test_one_that_was_starting_is_replaced(self):
        host, gate = self.gated_broker()
        gate.touch()
        self.client(host, "init")  # takes the warm one; the next one waits at the gate
        starting = int(host.log("worker started", start=1)["worker"])
        os.kill(starting, signal.SIGKILL)
        host.log("worker failed", worker=starting, reason="the worker ended before it was ready (signal 9)")
        gate.unlink()
        place = host.place()
        host.log("worker ready", start=place)
        self.assertEqual(fargpu("run", "--", "true", pool=host.pool), (0, "", ""))

    def failed_lease(self):
        """A broker that could not give a client the worker it needs."""
        host, gate = self.gated_broker()
        place = host.place()
        gate.touch()
        client = self.client(host, env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})  # needs a worker of its own
        client.begin("init")
        starting = int(host.log("worker started", start=place, warm="false")["worker"])
        os.kill(starting, signal.SIGKILL)
        self.assertEqual(client.answer(), "SYSTEM_NOT_READY")
        client.says("the worker ended before it was ready")
        return host

    def test_the_client_that_waits_for_one_is_told(self):
        host = self.failed_lease()
        self.client(host, "init", "context")

    def test_one_with_a_clients_environment_says_nothing_of_the_host(self):
        host = self.failed_lease()
        self.assertNotIn("failure", host.status())
        self.assertEqual(fargpu("run", "--", "true", pool=host.pool), (0, "", ""))

    def test_one_that_quits_is_logged(self):
        host = self.broker()
        worker = wait_until(host.workers, "a warm worker")[0]
        os.kill(worker, signal.SIGTERM)
        host.log("worker died", worker=worker, how="signal 15")

    def test_one_that_stays_when_its_session_is_over_is_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(Path(folder, "for ever"))
            script = Path(folder, "worker")
            script.write_text(f"#!/bin/sh\n{paths.FARGPUD.parent}/fargpu-worker \"$@\"\nread nothing < '{folder}/for "
                              "ever'\n", encoding="utf-8")
            script.chmod(0o755)
            host = self.broker("--worker", script)
            client = self.client(host, "init")
            worker = self.worker_of(host, client)
            self.assertEqual(client.finish(), 0)
            host.log("session ended", worker=worker)
            wait_gone(worker)

    def test_one_that_talks_nonsense_is_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "worker")
            script.write_text(f"#!/bin/sh\n[ -e {folder}/mad ] || exec {paths.FARGPUD.parent}/fargpu-worker \"$@\"\n"
                              f"head -c 64 /dev/urandom >&3\nexec sleep {PATIENCE}\n", encoding="utf-8")
            script.chmod(0o755)
            host = self.broker("--worker", script)
            place = host.place()
            Path(folder, "mad").touch()
            client = self.client(host, "init", "context")
            worker = int(host.log("worker started", start=place)["worker"])
            self.assertIn("reason", host.log("worker failed", worker=worker))
            wait_gone(worker)
            self.assertEqual(client.ask("sync"), "SUCCESS")
            Path(folder, "mad").unlink()
            self.client(host, "init", "context")

    def test_one_that_sees_other_devices_waits_for_the_end_of_leases(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "worker")
            script.write_text(f"#!/bin/sh\n[ -e {folder}/lost ] && set -- \"$@\" --devices 0\nexec "
                              f"{paths.FARGPUD.parent}/fargpu-worker \"$@\"\n",
                              encoding="utf-8")
            script.chmod(0o755)
            host = self.broker("--worker", script)
            wait_until(host.workers, "a warm worker")
            place = host.place()
            Path(folder, "lost").touch()
            client = self.client(host, "init", "context")  # takes the warm one, which has both
            self.assertIn("it sees 1 device, ", host.log("worker failed", start=place)["reason"])
            self.assertEqual(len(host.status()["devices"]), 2)
            self.assertEqual(client.ask("sync"), "SUCCESS")
            self.assertEqual(client.finish(), 0)
            # it is tried again some seconds later
            wait_until(lambda: host.status()["warm_workers"] == 1, "a warm worker")
            self.assertEqual(len(host.status()["devices"]), 1)
            self.client(host, "init", "context")


def asleep(pid):
    """Whether all threads of a process wait for something."""
    states = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as stat:
            states.append(stat.read().rsplit(") ", 1)[1][0])
    return set(states) == {"S"}


if __name__ == "__main__":
    unittest.main()
