"""Peers that are there and say nothing: each side ends what the other has left, in its time, and takes nobody for dead
who is not."""

import os
import signal
import time
import unittest

from rig import SystemTest, wait_gone, wait_until

MIB = 1 << 20
LOST = "DEVICE_UNAVAILABLE"


class Silence(SystemTest):
    def session(self, seconds, *commands):
        self.host = self.broker("--silence-seconds", str(seconds))
        self.survivor = self.client(self.host, "init", "context", f"alloc a {MIB}", "write a 17")
        client = self.client(self.host, "init", "context", "load", f"alloc a {64 * MIB}", *commands)
        return client, self.worker_of(self.host, client)

    def stop(self, pid):
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(lambda: os.path.exists(f"/proc/{pid}") and os.kill(pid, signal.SIGCONT))

    def assert_ended(self, worker, reason):
        wait_gone(worker)
        self.assertIn(reason, self.host.log("session ended", worker=worker)["reason"])
        wait_until(lambda: [s["pid"] for s in self.host.sessions()] == [self.survivor.pid],
                   "only the survivor's session")
        self.assert_lives(self.survivor)

    def test_a_silent_clients_session_ends(self):
        client, worker = self.session(2)
        self.stop(client.pid)
        self.assert_ended(worker, "the client has been silent for 2 s")
        os.kill(client.pid, signal.SIGCONT)
        client.says("the session is lost")
        self.assertRegex(client.errors(), r"this process was stopped for \d s, and a host ends the session of a client "
                                          r"that is silent for 2 s")
        self.assertEqual(client.ask("sync"), LOST)
        self.assertEqual(client.finish(), 0)

    def test_a_client_that_takes_nothing_is_silent_too(self):
        client, worker = self.session(2)
        client.begin_loop("read_forever a")
        self.stop(client.pid)
        self.assert_ended(worker, "the client has been silent for 2 s")

    def test_a_session_whose_driver_does_not_come_back_ends(self):
        client, worker = self.session(2, "hang a")
        client.begin("reset")  # which waits for the kernel
        self.assert_ended(worker, "a call to the driver has not come back for 2 s")
        self.assertEqual(client.answer(), LOST)

    def lose_silent_worker(self, client, worker, answer):
        client.says(f"{self.host.pool} has not answered for 2 s")
        self.assertEqual(answer(), LOST)
        self.assertEqual(client.ask("sync"), LOST)
        self.assertEqual(client.finish(), 0)
        os.kill(worker, signal.SIGCONT)
        wait_gone(worker)
        self.assert_lives(self.survivor)

    def test_a_silent_worker_is_given_up(self):
        client, worker = self.session(2)
        self.stop(worker)
        self.lose_silent_worker(client, worker, lambda: client.ask("sync"))

    def test_a_worker_that_does_not_run_keeps_no_lease(self):
        self.host = self.broker("--silence-seconds", "2", "--handshake-seconds", "4")
        self.survivor = self.client(self.host, "init", "context", f"alloc a {MIB}", "write a 17")
        client = self.client(self.host, "init", "context", f"alloc a {64 * MIB}")
        worker = self.worker_of(self.host, client)
        self.stop(worker)
        self.assert_ended(worker, "its worker has not run for 7 s")
        self.assertEqual(self.host.log("worker killed")["worker"], str(worker))
        self.assertEqual(client.ask("sync"), LOST)

    def test_a_silent_worker_is_given_up_in_the_middle_of_a_wait(self):
        client, worker = self.session(2)
        self.stop(worker)
        client.begin("check a")
        self.lose_silent_worker(client, worker, client.answer)

    def test_a_silent_worker_is_given_up_in_the_middle_of_sending(self):
        client, worker = self.session(2)
        self.stop(worker)
        client.begin("write a 2")
        self.lose_silent_worker(client, worker, client.answer)

    def test_a_silent_worker_is_given_up_by_a_program_that_waits_for_nothing(self):
        client, worker = self.session(2)
        client.begin_loop("launch_forever a")
        self.stop(worker)
        self.lose_silent_worker(client, worker, client.answer)

    def test_nobody_is_silent_only_because_the_gpu_is_busy(self):
        """Copies wait behind a kernel until there is no room for more of them: heartbeats are stuck behind, and nobody
        is dead."""
        client, worker = self.session(1, "hang a")
        for _ in range(3):
            client.begin("write a 3")
        time.sleep(4)  # not a wait for anything: far longer than the silence that would be fatal
        self.assertEqual(client.errors(), "")
        self.assertIn(client.pid, [s["pid"] for s in self.host.sessions()])
        client.process.kill()
        wait_gone(worker)

    def test_a_session_whose_kernel_never_ends(self):
        client, worker = self.session(30, "hang a")
        client.process.kill()
        self.assert_ended(worker, "closed the connection")


if __name__ == "__main__":
    unittest.main()
