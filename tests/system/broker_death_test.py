"""The broker's end, by force and in good order."""

import os
import signal
import time
import unittest

from rig import SystemTest, fargpu, paths, wait_gone, wait_until

MIB = 1 << 20


class ByForce(SystemTest):
    def kill(self, host):
        host.process.kill()
        host.wait(output=False)  # its workers write to the same stderr

    def test_sessions_go_on_and_a_new_broker_takes_over(self):
        host = self.broker()
        client = self.client(host, "init", "context", f"alloc a {MIB}", "write a 17")
        worker = self.worker_of(host, client)
        idle = wait_until(lambda: [w for w in host.workers() if w != worker], "a warm worker")[0]
        self.kill(host)
        wait_gone(idle)  # a worker without a session has nothing to live for

        self.assert_lives(client)
        late = self.client(host)
        self.assertEqual(late.ask("init"), "SYSTEM_NOT_READY")
        late.says("is fargpud running there and FARGPU_POOL right?")
        self.assertEqual(fargpu("run", "--", "true", pool=host.pool).code, 125)

        again = self.broker(port=host.port)
        self.assertIn(str(worker), again.log("sessions of an earlier fargpud")["workers"].split(", "))
        self.client(again, "init", "context")
        self.assert_lives(client)
        self.assertEqual(client.must(f"alloc b {MIB}"), "SUCCESS")
        self.assertEqual(client.finish(), 0)
        self.assertEqual(client.errors(), "")
        wait_gone(worker)

    def test_a_session_that_loses_its_client_later_ends(self):
        host = self.broker()
        client = self.client(host, "init", "context", f"alloc a {MIB}")
        worker = self.worker_of(host, client)
        self.kill(host)
        client.begin_loop("write_forever a")
        client.process.kill()
        wait_gone(worker)

    def test_while_a_client_waits_for_a_worker(self):
        host = self.broker()
        worker = wait_until(host.workers, "a warm worker")[0]
        os.kill(worker, signal.SIGSTOP)
        self.end_later(worker)
        client = self.client(host)
        client.begin("init")
        host.log("session started")  # the worker has the connection, and does not answer
        self.kill(host)
        os.kill(worker, signal.SIGCONT)
        # Whether it still served the session or ended with the broker: the client hears at once.
        self.assertIn(client.answer(), ("SUCCESS", "SYSTEM_NOT_READY"))


class InGoodOrder(SystemTest):
    def test_without_sessions(self):
        host = self.broker()
        workers = wait_until(host.workers, "a warm worker")
        host.terminate()
        self.assertEqual(host.wait(), 0)
        self.assertIn("stopped", host.process.err.text())
        for worker in workers:
            wait_gone(worker)

    def test_sessions_may_finish_and_new_ones_are_refused(self):
        host = self.broker("--drain-seconds", "60")
        client = self.client(host, "init", "context", f"alloc a {MIB}", "write a 17")
        host.terminate()
        host.log("draining")
        self.assert_lives(client)
        self.assertTrue(host.status()["draining"])
        self.assertIn("shutting down", fargpu("ls", pool=host.pool).out)

        late = self.client(host)
        self.assertEqual(late.ask("init"), "SYSTEM_NOT_READY")
        late.says("this host is shutting down")
        run = fargpu("run", "--", "true", pool=host.pool)
        self.assertEqual(run.code, 75)
        self.assertIn("this host is shutting down", run.err)
        self.assertIn("wait until it is back, or name another host", fargpu("doctor", pool=host.pool).out)

        self.assert_lives(client)
        self.assertEqual(client.finish(), 0)
        self.assertEqual(host.wait(), 0)

    def test_sessions_end_when_their_time_is_over(self):
        host = self.broker("--drain-seconds", "1")
        client = self.client(host, "init", "context", f"alloc a {MIB}", "write a 17")
        worker = self.worker_of(host, client)
        host.terminate()
        self.assertEqual(host.wait(), 0)
        wait_gone(worker)
        client.says("the host's fargpud is shutting down")
        self.assertEqual(client.ask("sync"), "DEVICE_UNAVAILABLE")
        self.assertEqual(client.finish(), 0)

    def test_a_second_signal_ends_at_once(self):
        host = self.broker("--drain-seconds", "60")
        client = self.client(host, "init", "context")
        worker = self.worker_of(host, client)
        host.terminate()
        host.log("draining")
        host.terminate()
        self.assertEqual(host.wait(), 0)
        wait_gone(worker)
        client.says("the host's fargpud is shutting down")
        self.assertEqual(client.ask("sync"), "DEVICE_UNAVAILABLE")
        self.assertEqual(len(host.logged("session ended")), 1)

    def test_interrupt_gives_sessions_no_time(self):
        host = self.broker("--drain-seconds", "60")
        client = self.client(host, "init", "context")
        host.process.signal(signal.SIGINT)
        self.assertEqual(host.wait(), 0)
        client.says("the host's fargpud is shutting down")

    @unittest.skipIf(paths.TRANSPORT == "ucx", "what waits is seen by the sockets of the broker's port")
    def test_a_client_that_does_not_listen_holds_nothing_up(self):
        host = self.broker("--drain-seconds", "0")
        client = self.client(host, "init", "context", f"alloc a {96 * MIB}")
        worker = self.worker_of(host, client)
        client.begin_loop("read_forever a")

        def stuck():
            os.kill(client.pid, signal.SIGSTOP)
            time.sleep(0.1)  # in which the system takes what it has room for
            if unsent_bytes(host.port) > MIB:
                return True
            os.kill(client.pid, signal.SIGCONT)
            return False

        wait_until(stuck, "a stop in the middle of a copy")
        host.terminate()
        self.assertEqual(host.wait(), 0)
        wait_gone(worker)


def unsent_bytes(port):
    """What waits to be taken by clients of this port."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        lines = [line.split() for line in table.readlines()[1:]]
    return sum(int(fields[4].split(":")[0], 16) for fields in lines if int(fields[1].split(":")[1], 16) == port
               and fields[3] == "01")


if __name__ == "__main__":
    unittest.main()
