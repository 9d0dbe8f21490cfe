"""kill -9 of any side at any moment of a program that works: the others hear of it, nothing stays, the next works."""

import os
import random
import time
import unittest

from rig import SystemTest, wait_gone, wait_until

MIB = 1 << 20
SEED = int(os.environ.get("FARGPU_TEST_SEED", "1"))
ROUNDS = int(os.environ.get("FARGPU_TEST_ROUNDS", "12"))


class Sweep(SystemTest):
    def moments(self):
        """Rounds, each with a moment at which to strike: milliseconds into the program's work."""
        chance = random.Random(SEED)
        for number in range(ROUNDS):
            milliseconds = chance.uniform(0, 40)
            with self.subTest(seed=SEED, round=number, milliseconds=milliseconds):
                yield milliseconds

    def worker_at_work(self, host):
        client = self.client(host, "init", "context", "load", f"alloc a {MIB}", "write a 1")
        worker = self.worker_of(host, client)
        client.begin("work_forever a")
        self.assertEqual(client.answer(), "begun")
        return client, worker

    def strike_after(self, milliseconds, process_id):
        time.sleep(milliseconds / 1000)  # not a wait for anything: the moment
        os.kill(process_id, 9)

    def assert_clean(self, host, neighbour=None):
        wait_until(lambda: [s["pid"] for s in host.sessions()] == ([neighbour.pid] if neighbour else []),
                   "no session left over")
        wait_until(lambda: len(host.workers()) == (2 if neighbour else 1), "no worker left over")
        if neighbour:
            self.assert_lives(neighbour)

    def test_of_clients(self):
        host = self.broker()
        neighbour = self.client(host, "init", "context", f"alloc a {MIB}", "write a 17")
        for moment in self.moments():
            client, worker = self.worker_at_work(host)
            self.strike_after(moment, client.pid)
            wait_gone(worker)
            self.assert_clean(host, neighbour)

    def test_of_workers(self):
        host = self.broker()
        neighbour = self.client(host, "init", "context", f"alloc a {MIB}", "write a 17")
        for moment in self.moments():
            client, worker = self.worker_at_work(host)
            self.strike_after(moment, worker)
            self.assertEqual(client.answer(), "DEVICE_UNAVAILABLE")
            self.assertEqual(client.ask("sync"), "DEVICE_UNAVAILABLE")
            self.assertEqual(client.finish(), 0)
            self.assertEqual(client.errors().count("\n"), 0, client.errors())
            self.assertIn("the session is lost", client.errors())
            self.assert_clean(host, neighbour)

    def test_of_brokers(self):
        host = self.broker()
        for moment in self.moments():
            client, worker = self.worker_at_work(host)
            self.strike_after(moment, host.pid)
            host.wait(output=False)
            next_host = self.broker(port=host.port)
            # The session goes on without its broker, and ends with its client.
            other = self.client(next_host, "init", "context", f"alloc a {MIB}", "write a 17")
            self.assert_lives(other)
            self.assertTrue(client.process.running())
            self.assertEqual(client.errors(), "")
            client.process.kill()
            wait_gone(worker)
            self.assertEqual(other.finish(), 0)
            self.assert_clean(next_host)
            host = next_host

    def test_of_all_at_once(self):
        host = self.broker()
        chance = random.Random(SEED)
        for moment in self.moments():
            sessions = [self.worker_at_work(host) for _ in range(3)]
            victims = [chance.choice((client.pid, worker, None)) for client, worker in sessions]
            time.sleep(moment / 1000)  # not a wait for anything: the moment
            for victim in filter(None, victims):
                os.kill(victim, 9)
            for (client, worker), victim in zip(sessions, victims):
                if victim == worker:
                    self.assertEqual(client.answer(), "DEVICE_UNAVAILABLE")
                elif victim is None:
                    self.assertTrue(client.process.running())
                    self.assertEqual(client.errors(), "")
                client.process.kill()
                wait_gone(worker)
            self.assert_clean(host)


if __name__ == "__main__":
    unittest.main()
