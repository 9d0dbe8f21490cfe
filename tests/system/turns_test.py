"""Sharing a GPU by turns: real brokers and workers, tenants whose kernels take a given time on the software GPU. Shares and delays to the
percent are the unit tests' affair (scheduler_test.cpp); here the machine may be busy with anything."""

import json
import unittest

from rig import SystemTest, fargpu, paths, wait_until

SECONDS = 3


class Turns(SystemTest):
    def host(self, *options, devices=1):
        return self.broker("--warm-workers", "3", *options, driver=paths.SOFTWARE_GPU,
                           env={"FARGPU_SOFTGPU_DEVICES": str(devices), "FARGPU_SOFTGPU_THREADS": "2"})

    def tenant(self, host, *arguments, **env):
        """Started, and past its own start."""
        process = self.start([paths.PROGRAMS / "turns", *map(str, arguments)],
                             env={"FARGPU_POOL": host.pool, "LD_LIBRARY_PATH": paths.LIBRARIES, **env})
        process.out.find(lambda line: line == "ready")
        return process

    def outcome(self, process):
        self.assertEqual(process.wait(), 0, process.err.seen)
        return json.loads(process.out.seen[-1])

    def ended(self, host, process):
        session = host.log("session started", pid=process.pid)["session"]
        return host.log("session ended", session=session)

    def pair(self, host, one, other):
        started = [self.tenant(host, *one), self.tenant(host, *other)]
        return [self.outcome(process) for process in started]


class Policies(Turns):
    def test_fair_gives_equal_tenants_the_same(self):
        a, b = self.pair(self.host("--policy", "fair"), ["spend", SECONDS, 5000], ["spend", SECONDS, 5000])
        self.assertLess(a["share"] + b["share"], 1.25)  # they overlap only at the ends
        self.assertGreater(min(a["share"], b["share"]), 0.2)
        self.assertAlmostEqual(a["share"], b["share"], delta=0.2)

    def test_free_lets_all_work_at_once_and_says_nothing_of_turns(self):
        host = self.host("--policy", "free")
        processes = [self.tenant(host, "spend", SECONDS, 5000) for _ in range(2)]
        a, b = map(self.outcome, processes)
        self.assertGreater(a["share"] + b["share"], 1.2)
        for process in processes:
            ended = self.ended(host, process)
            self.assertEqual(int(ended["turn_words"]), 1)  # that it may
            self.assertGreater(int(ended["busy_ms"]), 1000 * SECONDS * 0.5)
            self.assertEqual(int(ended["waited_ms"]), 0)

    def test_whoever_is_alone_hears_of_no_turns(self):
        host = self.host("--policy", "fair")
        process = self.tenant(host, "spend", 1, 500)
        self.outcome(process)
        self.assertEqual(int(self.ended(host, process)["turn_words"]), 1)

    def test_exclusive_turns_are_long_and_end_early(self):
        host = self.host("--policy", "exclusive", "--quantum-ms", "400")
        busy, brief = self.pair(host, ["spend", 4, 5000], ["spend", 4, 1000, 1, 5])
        self.assertGreater(busy["share"], 0.5)
        # It waits a whole turn of the other, and the other for no more than its kernel.
        self.assertGreater(brief["p50_ms"], 200)
        self.assertLess(brief["p50_ms"], 1500)

    def test_what_a_tenant_used_and_waited_is_told(self):
        host = self.host("--policy", "fair")
        processes = [self.tenant(host, "spend", SECONDS, 5000) for _ in range(2)]
        for process in processes:
            outcome = self.outcome(process)
            ended = self.ended(host, process)
            self.assertGreaterEqual(int(ended["busy_ms"]), 5 * outcome["kernels"] * 0.9)
            self.assertGreater(int(ended["waited_ms"]), 200)


class Waiting(Turns):
    def test_kernels_of_two_devices_that_wait_for_each_other(self):
        host = self.host("--policy", "fair", "--grace-ms", "20", devices=2)
        self.tenant(host, "spend", 60, 1000)
        ranks = self.tenant(host, "ranks", 4)
        self.assertEqual(ranks.wait(), 0, ranks.err.seen)
        self.assertEqual(ranks.out.seen[-1], "met")

    def test_a_tenant_that_dies_in_its_turn_keeps_nobody_waiting(self):
        host = self.host("--policy", "exclusive", "--quantum-ms", "50000")
        doomed = self.tenant(host, "spend", 60, 5000)
        other = self.start([paths.PROGRAMS / "turns", "spend", "0.2", "1000"],
                           env={"FARGPU_POOL": host.pool, "LD_LIBRARY_PATH": paths.LIBRARIES})
        wait_until(lambda: len(host.sessions()) == 2, "two sessions")
        doomed.kill()
        self.assertEqual(other.wait(), 0)

    def test_memory_and_queries_need_no_turn(self):
        host = self.host("--policy", "exclusive", "--quantum-ms", "60000")
        self.tenant(host, "spend", 60, 5000)
        client = self.client(host, "init", "context", "alloc a 1048576")
        self.assertEqual(client.ask("sync"), "SUCCESS")  # nothing was given, so there is nothing to wait for


class Hung(Turns):
    def test_a_kernel_without_end_ends_its_session_only(self):
        host = self.host("--kernel-seconds-max", "1")
        neighbour = self.tenant(host, "spend", SECONDS, 1000)
        hung = self.tenant(host, "for-ever")
        self.assertNotEqual(hung.wait(), 0)
        self.assertIn("kernel_seconds_max", self.ended(host, hung)["reason"])
        self.assertGreater(self.outcome(neighbour)["kernels"], 0)


class Settings(Turns):
    def test_a_policy_that_there_is_not(self):
        done = self.start([paths.FARGPUD, "--policy", "chance", "--config", "/dev/null"])
        self.assertEqual(done.wait(), 2)
        self.assertIn("free, fair, fixed or exclusive", done.err.seen[-1])


if __name__ == "__main__":
    unittest.main()
