"""Sharing a GPU by turns: real brokers and workers, tenants whose kernels take a given time on the software GPU. Shares
and delays to the percent are the unit tests' affair (scheduler_test.cpp); here the machine may be busy with
anything."""

import contextlib
import functools
import json
import socket
import unittest
import urllib.error
import urllib.request

from rig import SystemTest, fargpu, paths, wait_until
from rig.broker import settings_file

SECONDS = 3
MIB = 1 << 20


def of_time(test):
    """A test of what tenants get in a time, which is less while others have the machine's processors. What does not
    hold is tried twice more."""

    @functools.wraps(test)
    def tried(self):
        for _ in range(2):
            with contextlib.suppress(AssertionError):
                return test(self)
        return test(self)

    return tried


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
    @of_time
    def test_fair_gives_equal_tenants_the_same(self):
        a, b = self.pair(self.host("--policy", "fair"), ["spend", SECONDS, 5000], ["spend", SECONDS, 5000])
        self.assertLess(a["share"] + b["share"], 1.25)  # they overlap only at the ends
        self.assertGreater(min(a["share"], b["share"]), 0.2)
        self.assertAlmostEqual(a["share"], b["share"], delta=0.2)

    @of_time
    def test_free_lets_all_work_at_once_and_says_nothing_of_turns(self):
        host = self.host("--policy", "free")
        processes = [self.tenant(host, "spend", SECONDS, 5000) for _ in range(2)]
        a, b = map(self.outcome, processes)
        self.assertGreater(a["share"] + b["share"], 1.2)
        for process in processes:
            ended = self.ended(host, process)
            self.assertEqual(int(ended["turn_messages"]), 1)  # that it may
            self.assertGreater(int(ended["busy_ms"]), 1000 * SECONDS * 0.5)
            self.assertEqual(int(ended["waited_ms"]), 0)

    def test_whoever_is_alone_hears_of_no_turns(self):
        host = self.host("--policy", "fair")
        process = self.tenant(host, "spend", 1, 500)
        self.outcome(process)
        self.assertEqual(int(self.ended(host, process)["turn_messages"]), 1)

    @of_time
    def test_exclusive_turns_are_long_and_end_early(self):
        host = self.host("--policy", "exclusive", "--quantum-ms", "400")
        busy, brief = self.pair(host, ["spend", 4, 5000], ["spend", 4, 1000, 1, 5])
        self.assertGreater(busy["share"], 0.5)
        # It waits a whole turn of the other, and the other for no more than its kernel.
        self.assertGreater(brief["max_ms"], 200)
        self.assertLess(brief["max_ms"], 1500)

    @of_time
    def test_what_a_tenant_used_and_waited_is_told(self):
        host = self.host("--policy", "fair")
        processes = [self.tenant(host, "spend", SECONDS, 5000) for _ in range(2)]
        for process in processes:
            outcome = self.outcome(process)
            ended = self.ended(host, process)
            self.assertGreaterEqual(int(ended["busy_ms"]), 5 * outcome["kernels"] * 0.9)
            self.assertGreater(int(ended["waited_ms"]), 200)


class Shares(Turns):
    def session_of(self, host, process):
        return host.log("session started", pid=process.pid)["session"]

    @of_time
    def test_weights_by_quota(self):
        host = self.host("--policy", "fair")
        more, less = [self.tenant(host, "spend", 5, 5000) for _ in range(2)]
        done = fargpu("quota", self.session_of(host, more), "--weight", "300", "--host", host.pool)
        self.assertEqual((done.code, done.err), (0, ""))
        a, b = self.outcome(more), self.outcome(less)
        self.assertGreater(a["kernels"], 1.6 * b["kernels"])
        self.assertLess(a["kernels"], 4.5 * b["kernels"])

    @of_time
    def test_fixed_is_kept_though_the_device_is_idle(self):
        host = self.host("--policy", "fixed")
        for kernel_us in (500, 5000):
            process = self.tenant(host, "spend", 4, kernel_us, FARGPU_COMPUTE="25%")
            outcome = self.outcome(process)
            self.assertLess(outcome["share"], 0.30, kernel_us)
            self.assertGreater(outcome["share"], 0.10, kernel_us)
            self.assertGreater(int(self.ended(host, process)["waited_ms"]), 1000)

    @of_time
    def test_a_quota_is_used_as_well_as_kept(self):
        host = self.host("--policy", "fixed")
        for kernel_us in (1000, 20000):
            outcome = self.outcome(self.tenant(host, "spend", 3, kernel_us, FARGPU_COMPUTE="50%"))
            self.assertLess(outcome["share"], 0.53, kernel_us)  # and a kernel that had begun
            self.assertGreater(outcome["share"], 0.35, kernel_us)

    def test_what_was_short_once_is_not_given_many_times_ahead(self):
        # The first kernel of the program takes a microsecond, and those that look like it 20 ms. Two may be begun in
        # the first two tenths.
        outcome = self.outcome(self.tenant(self.host("--policy", "fixed"), "spend", 1, 20000, FARGPU_COMPUTE="10%"))
        self.assertLess(sum(outcome["series"][:2]), 0.65)

    def test_a_quota_of_a_running_lease(self):
        host = self.host("--policy", "fixed")
        process = self.tenant(host, "spend", 4, 5000)
        self.assertEqual(fargpu("quota", self.session_of(host, process), "--percent", "20", "--host", host.pool).code,
                         0)
        self.assertLess(self.outcome(process)["share"], 0.45)

    def test_a_percentage_that_is_not_kept_is_told(self):
        host = self.host("--policy", "fair")
        process = self.tenant(host, "spend", 0.2, 1000, FARGPU_COMPUTE="25%")
        self.outcome(process)
        self.assertEqual(host.log("share not kept")["percent"], "25")

    @of_time
    def test_the_latency_critical_come_first(self):
        host = self.host("--policy", "fair")
        background = self.tenant(host, "spend", 60, 1000, FARGPU_PRIORITY="best-effort")
        critical = self.tenant(host, "spend", SECONDS, 2000, 5, 50, FARGPU_PRIORITY="latency-critical")
        outcome = self.outcome(critical)
        self.assertLess(outcome["p50_ms"], 25)  # 10 by itself; in turns of its own it would be more than twice that
        status = host.status()
        session = self.session_of(host, background)
        lease = next(lease for lease in status["leases"]
                     if lease["id"] == next(s["lease"] for s in status["sessions"] if s["id"] == int(session)))
        self.assertGreater(lease["held_back"], 10)

    @of_time
    def test_the_policy_changes_while_tenants_work(self):
        host = self.host("--policy", "free")
        processes = [self.tenant(host, "spend", 4, 5000) for _ in range(2)]
        self.assertEqual(fargpu("policy", "show", pool=host.pool).out, "free, turns of 10 ms, grace 50 ms\n")
        self.assertEqual(fargpu("policy", "set", "exclusive", "--host", host.pool).code, 0)
        self.assertEqual(host.status()["policy"], "exclusive")
        wait_until(lambda: sum(lease["turns"] for lease in host.status()["leases"]) > 10, "turns")
        self.assertEqual(fargpu("policy", "set", "free", "--host", host.pool).code, 0)
        for process in processes:
            self.assertGreater(self.outcome(process)["share"], 0.3)
            self.assertGreater(int(self.ended(host, process)["turn_messages"]), 10)

    def test_what_cannot_be_changed(self):
        host = self.host()
        for arguments, text in ((["policy", "set", "chance"], "no policy 'chance'"),
                                (["quota", "99", "--weight", "3"], "no session 99")):
            done = fargpu(*arguments, "--host", host.pool)
            self.assertEqual(done.code, 125)
            self.assertIn(text, done.err)

    def test_where_there_are_tenants_only_the_settings_decide(self):
        with settings_file("[tenant.one]\n[tenant.two]\n") as file:
            host = self.broker(config=file)
            done = fargpu("policy", "set", "fair", "--host", host.pool)
        self.assertNotEqual(done.code, 0)
        self.assertEqual(host.logged("policy"), [])


class Seeing(Turns):
    @of_time
    def test_top(self):
        host = self.host("--policy", "fair")
        tenants = [self.tenant(host, "spend", 60, 5000) for _ in range(2)]
        done = fargpu("top", "-o", "json", "-d", "2", pool=host.pool)
        self.assertEqual((done.code, done.err), (0, ""))
        shown = json.loads(done.out)[0]
        self.assertEqual(shown["policy"], "fair")
        self.assertEqual(len(shown["sessions"]), len(tenants))
        for session in shown["sessions"]:
            self.assertGreater(session["use_ratio"], 0.1)
            self.assertGreater(session["throttled_ratio"], 0.1)
        self.assertIn("throttled", fargpu("top", pool=host.pool).out)

    def test_metrics(self):
        host = self.host("--metrics-listen", "127.0.0.1:0", "--policy", "fair")
        port = host.log("metrics")["port"]
        process = self.tenant(host, "spend", 60, 5000)

        def sample(name):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            return [line for line in lines if line.startswith(name)]

        self.assertEqual([line.split()[-1] for line in sample("fargpu_sessions{")], ["1"])
        self.assertTrue(any('result="granted",reason=""} 1' in line for line in sample("fargpu_admissions_total")))
        wait_until(lambda: any(float(line.split()[-1]) > 0.5
                               for line in sample("fargpu_session_compute_seconds_total")), "seconds used")
        self.assertTrue(all("UUID=\"GPU-" in line and "Hostname=" in line
                            for line in sample("fargpu_session_memory_bytes")))
        process.kill()
        wait_until(lambda: [line.split()[-1] for line in sample("fargpu_sessions{")] == ["0"], "no session")
        with self.assertRaises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)

    def test_metrics_answer_nobody_who_asks_wrongly(self):
        host = self.host("--metrics-listen", "127.0.0.1:0")
        port = int(host.log("metrics")["port"])
        for request in (b"POST /metrics HTTP/1.0\r\n\r\n", b"\r\n\r\n", b"GET\r\n\r\n", b"\x00" * 100_000,
                        b"GET /metrics" + b" " * 5000):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                with contextlib.suppress(OSError):
                    connection.sendall(request)
                    connection.shutdown(socket.SHUT_WR)
                answer = b""
                with contextlib.suppress(OSError):
                    while part := connection.recv(65536):
                        answer += part
            self.assertNotIn(b"200 OK", answer)
        # Connections that say nothing keep no other out: the oldest go.
        with contextlib.ExitStack() as silent:
            for _ in range(40):
                silent.enter_context(socket.create_connection(("127.0.0.1", port)))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                self.assertIn(b"fargpu_build_info", answer.read())


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


class Rivals(Turns):
    def test_no_copy_is_lost_to_a_rival_that_never_yields(self):
        host = self.host("--policy", "fair", "--host-bytes-max", "64MiB")
        self.tenant(host, "for-ever")
        # By the session's own connection alone; the program has its memory back when a copy returns.
        client = self.client(host, "init", "context", f"alloc a {64 * MIB}", env={"FARGPU_LANES": "1"})
        self.assertEqual(client.ask(f"rewrite a {4 * MIB} 600", seconds=240), "SUCCESS")
        self.assertEqual(client.ask("sync", seconds=60), "SUCCESS")
        self.assertEqual(client.ask("check a", seconds=60), "SUCCESS same")
        self.assertNotIn("warning", client.errors())


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
