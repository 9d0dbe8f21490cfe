"""Several clients at one broker: what happens to one is no business of the others."""

import os
import time
import unittest

from rig import SystemTest, paths, wait_gone, wait_until
from rig.wire import VERSION

MIB = 1 << 20


class Neighbours(SystemTest):
    def setUp(self):
        self.host = self.broker()
        self.neighbour = self.client(self.host, "init", "context", "load", f"alloc a {MIB}", "write a 17")

    def doomed(self, *commands):
        client = self.client(self.host, "init", "context", "load", *commands)
        return client, self.worker_of(self.host, client)

    def assert_forgotten(self, worker):
        """The worker ends, and with it everything it held."""
        wait_gone(worker)
        self.host.log("session ended", worker=worker)
        wait_until(lambda: [s["pid"] for s in self.host.sessions()] == [self.neighbour.pid],
                   "only the neighbour's session")
        wait_until(lambda: self.host.status()["devices"][0]["used_bytes"] < 32 * MIB,
                   "the dead client's memory free again")
        self.assert_lives(self.neighbour)

    def kill_while(self, command):
        client, worker = self.doomed(f"alloc big {64 * MIB}")
        client.begin_loop(f"{command} big")
        client.process.kill()
        self.assert_forgotten(worker)

    def test_killed_in_the_middle_of_a_copy_to_the_device(self):
        self.kill_while("write_forever")

    def test_killed_in_the_middle_of_a_copy_from_the_device(self):
        self.kill_while("read_forever")

    def test_killed_in_a_launch_loop(self):
        self.kill_while("launch_forever")

    def test_killed_while_idle(self):
        client, worker = self.doomed(f"alloc big {64 * MIB}", "write big 1")
        wait_until(lambda: self.host.status()["devices"][0]["used_bytes"] >= 64 * MIB, "its memory in use")
        client.process.kill()
        self.assert_forgotten(worker)

    def test_killed_at_any_time_of_its_start(self):
        for milliseconds in range(0, 15):
            client = self.client(self.host)
            client.begin("init")
            time.sleep(milliseconds / 1000)  # not a wait for anything: the moment at which it dies
            client.process.kill()
            client.process.wait()
        wait_until(lambda: [s["pid"] for s in self.host.sessions()] == [self.neighbour.pid],
                   "only the neighbour's session")
        self.assert_lives(self.neighbour)
        self.client(self.host, "init")

    def test_crash_of_the_gpu_context(self):
        client, worker = self.doomed(f"alloc big {MIB}")
        client.ask("crash big")
        self.assertEqual(client.ask("sync"), "ILLEGAL_ADDRESS")
        self.assert_lives(self.neighbour)
        self.assertEqual(client.finish(), 0)
        self.assert_forgotten(worker)

    def test_same_addresses_other_memory(self):
        other, _ = self.doomed(f"alloc a {MIB}", "write a 99")
        self.assertEqual(other.must("address a"), self.neighbour.must("address a"))
        self.assert_lives(other)
        self.assert_lives(self.neighbour)


class Descriptors(SystemTest):
    def test_a_worker_has_none_of_others(self):
        """A connection that the broker cuts off is over, whatever workers were started while it was open."""
        host = self.broker()
        connection = self.connection(host)
        connection.say(f"(hello = ({VERSION}))")
        connection.hear()
        client = self.client(host, "init")  # its worker was there before; the next one is started now
        wait_until(lambda: len(host.logged("worker ready")) == 2, "the next warm worker")
        connection.send(bytes(64))
        self.assertTrue(connection.is_closed())
        for worker in host.workers():
            links = [os.readlink(f"/proc/{worker}/fd/{fd}") for fd in os.listdir(f"/proc/{worker}/fd")]
            session = worker == self.worker_of(host, client)
            own = 2 if paths.TRANSPORT == "ucx" else 0  # UCX's TCP listens, and is connected
            self.assertEqual(sum(link.startswith("socket:") for link in links), 2 + own if session else 1, links)


if __name__ == "__main__":
    unittest.main()
