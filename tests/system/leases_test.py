"""Leases: what clients ask for, who gets it now, and what they then see."""

import os
import tempfile
import time
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_until
from rig.broker import settings_file

MIB = 1 << 20
GIB = 1 << 30


def asking(**wishes):
    return {f"FARGPU_{name.upper()}": str(value) for name, value in wishes.items()}


class Leases(SystemTest):
    def host_of(self, devices=2, tenants="", **more):
        with settings_file(tenants) as file:
            return self.broker(config=file, env={"FARGPU_FAKE_DEVICES": devices}, **more)

    def capacity(self, host):
        return host.status()["devices"][0]["memory_bytes"]

    def test_by_default_everything_is_as_it_was(self):
        host = self.host_of()
        one, other = (self.client(host, "init") for _ in range(2))
        self.assertEqual(one.ask("count"), "SUCCESS 2")
        self.assertEqual(one.ask("total_bytes 0"), other.ask("total_bytes 0"))
        self.assertEqual(one.ask("total_bytes 0"), f"SUCCESS {self.capacity(host)}")
        self.assertEqual({s["tenant"] for s in host.sessions()}, {"default"})

    def test_a_lease_has_so_many_devices_and_so_much_memory(self):
        host = self.host_of()
        client = self.client(host, "init", "context", env=asking(gpus=1, mem="64MiB"))
        self.assertEqual(client.ask("count"), "SUCCESS 1")
        self.assertEqual(client.ask("total_bytes 0"), f"SUCCESS {64 * MIB}")
        self.assertEqual(client.ask("free_bytes"), f"SUCCESS {64 * MIB}")
        self.assertEqual(client.ask(f"alloc big {66 * MIB}"), "OUT_OF_MEMORY")
        client.must(f"alloc big {62 * MIB}")
        self.assertEqual(client.ask("free_bytes"), f"SUCCESS {2 * MIB}")
        self.assertEqual(client.ask(f"alloc more {4 * MIB}"), "OUT_OF_MEMORY")
        client.must("write big 5")
        self.assert_lives(client, "big")

    def test_a_program_with_all_devices_of_a_large_host(self):
        host = self.host_of(devices=16)
        done = fargpu("run", "-n", "16", "--", paths.PROGRAMS / "held", "0.5", pool=host.pool)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertRegex(done.out, r"(?m)^E \d+$")
        self.assertEqual(host.log("session ended")["reason"], "the client left")

    def test_leases_go_where_most_memory_is_free(self):
        host = self.host_of(devices=3)
        quarter = self.capacity(host) // 4
        clients = [self.client(host, "init", env=asking(gpus=1, mem=quarter)) for _ in range(3)]
        self.assertEqual(len({c.must("uuid 0") for c in clients}), 3)

    def test_refused_at_once_with_what_is_free(self):
        host = self.host_of(devices=1)
        most = self.capacity(host) * 3 // 4
        self.client(host, "init", env=asking(mem=most))
        late = self.client(host, env=asking(mem=most))
        since = time.monotonic()
        self.assertEqual(late.ask("init"), "SYSTEM_NOT_READY")
        self.assertLess(time.monotonic() - since, 5)
        late.says("GPU 0 has")
        late.says("on 1 GPU is asked for")
        late.says("; try later or wait with FARGPU_WAIT")
        self.assertEqual(host.log("lease refused")["program"], "commanded")

    def test_a_waiting_lease_is_granted_when_another_ends(self):
        host = self.host_of(devices=1)
        most = self.capacity(host) * 3 // 4
        first = self.client(host, "init", env=asking(mem=most))
        second = self.client(host, env=asking(mem=most, wait="60s"))
        second.begin("init")
        host.log("lease waits")
        self.assertEqual(first.finish(), 0)
        self.assertEqual(second.answer(), "SUCCESS")

    def test_waiting_ends_with_its_time(self):
        host = self.host_of(devices=1)
        most = self.capacity(host) * 3 // 4
        self.client(host, "init", env=asking(mem=most))
        second = self.client(host, env=asking(mem=most, wait="1s"))
        self.assertEqual(second.ask("init"), "SYSTEM_NOT_READY")
        second.says("GPU 0 has")

    def test_who_leaves_while_waiting_gets_nothing(self):
        host = self.host_of(devices=1)
        most = self.capacity(host) * 3 // 4
        first = self.client(host, "init", env=asking(mem=most))
        second = self.client(host, env=asking(mem=most, wait="60s"))
        second.begin("init")
        host.log("lease waits")
        second.process.kill()
        self.assertEqual(first.finish(), 0)
        wait_until(lambda: not host.status()["leases"], "no lease left")
        self.client(host, "init", env=asking(mem=most))

    def test_what_never_can_be(self):
        host = self.host_of()
        client = self.client(host, env=asking(gpus=3, wait="60s"))
        self.assertEqual(client.ask("init"), "NOT_PERMITTED")
        client.says("3 GPUs are asked for, but this host has 2")

    def test_wrong_wishes_are_named(self):
        host = self.host_of()
        for name, value in {"FARGPU_GPUS": "0", "FARGPU_MEM": "much", "FARGPU_COMPUTE": "101%",
                            "FARGPU_PRIORITY": "high",
                            "FARGPU_WAIT": "long", "FARGPU_JOB": "mine"}.items():
            with self.subTest(name):
                client = self.client(host, env={name: value})
                self.assertEqual(client.ask("init"), "NO_DEVICE")
                client.says(f"{name} is '{value}'")
                done = fargpu("run", "--", "true", pool=host.pool, env={name: value})
                if name != "FARGPU_JOB":
                    self.assertEqual(done.code, 125)
                    self.assertIn(f"{name} is '{value}'", done.err)

    # --- jobs --------------------------------------------------------------------------------------------------------

    def test_processes_of_one_run_share_one_lease(self):
        """The sum of what they hold counts, and they see the same devices."""
        host = self.host_of(devices=3)
        job = self.start([paths.FARGPU, "run", "-n", "2", "-m", "64MiB", "--", "sh", "-c",
                          "echo $FARGPU_JOB; read line"],
                         env={"FARGPU_POOL": host.pool})
        name, _ = job.out.find(lambda line: line)
        self.assertEqual(len(name), 32)
        one, other = (self.client(host, "init", "context", env={"FARGPU_JOB": name}) for _ in range(2))
        self.assertEqual(one.ask("count"), "SUCCESS 2")
        for number in range(2):
            self.assertEqual(one.must(f"uuid {number}"), other.must(f"uuid {number}"))
        one.must(f"alloc a {40 * MIB}")
        self.assertEqual(other.ask("free_bytes"), f"SUCCESS {24 * MIB}")
        self.assertEqual(other.ask(f"alloc a {40 * MIB}"), "OUT_OF_MEMORY")
        other.must(f"alloc b {24 * MIB}")
        self.assertEqual(one.ask(f"alloc b {2 * MIB}"), "OUT_OF_MEMORY")
        # What a process held that was killed is the others' again.
        other.process.kill()
        wait_until(lambda: one.ask("free_bytes") == f"SUCCESS {24 * MIB}", "what the dead process held free again")
        self.assertEqual({f["lease"] for f in host.logged("session started")}, {str(host.status()["leases"][0]["id"])})
        job.send_line("on")
        self.assertEqual(job.wait(), 0)

    def test_what_is_run_is_in_the_job(self):
        host = self.host_of()
        program = paths.PROGRAMS / "commanded"
        done = fargpu("run", "-n", "1", "-m", "32MiB", "--", "sh", "-c",
                      f'for i in 1 2; do printf "init\\ntotal_bytes 0\\ncount\\nexit 0\\n" | {program}; done',
                      pool=host.pool)
        self.assertEqual(done.out.split("\n")[:6], ["SUCCESS", f"SUCCESS {32 * MIB}", "SUCCESS 1"] * 2, done.err)
        self.assertEqual(len({f["lease"] for f in host.logged("session started")}), 1)

    def test_a_job_keeps_its_lease_between_its_programs(self):
        host = self.host_of(devices=1)
        most = self.capacity(host) * 3 // 4
        program = paths.PROGRAMS / "commanded"
        job = self.start([paths.FARGPU, "run", "-m", str(most), "--", "sh", "-c",
                          f'printf "init\\nexit 0\\n" | {program}; read line'],
                         env={"FARGPU_POOL": host.pool})
        host.log("session ended")
        ended = wait_until(lambda: [l for l in host.status()["leases"] if not l["sessions"]], "no session")
        self.assertEqual([l["sessions"] for l in ended], [0])
        late = fargpu("run", "-m", str(most), "--", "true", pool=host.pool)
        self.assertEqual(late.code, 75)
        job.send_line("on")
        self.assertEqual(job.wait(), 0)
        wait_until(lambda: not host.status()["leases"], "the lease gone with the job")
        self.assertEqual(fargpu("run", "-m", str(most), "--", "true", pool=host.pool).code, 0)

    def test_run_waits(self):
        host = self.host_of(devices=1)
        most = self.capacity(host) * 3 // 4
        first = self.client(host, "init", env=asking(mem=most))
        job = self.start([paths.FARGPU, "run", "-m", str(most), "--wait", "1min", "--", "true"],
                         env={"FARGPU_POOL": host.pool})
        host.log("lease waits")
        first.finish()
        self.assertEqual(job.wait(), 0)

    def test_listing_shows_leases(self):
        host = self.host_of()
        self.client(host, "init", env=asking(gpus=1, mem="64MiB", compute="50%", priority="best-effort"))
        (lease,) = host.status()["leases"]
        self.assertEqual((lease["memory_bytes"], lease["compute_percent"], lease["priority"], lease["sessions"],
                          len(lease["devices"])),
                         (64 * MIB, 50, "best-effort", 1, 1))
        table = fargpu("ls", pool=host.pool).out
        self.assertIn("best-effort", table)

    def test_what_the_driver_takes_for_itself_is_charged_when_it_is_seen(self):
        with tempfile.NamedTemporaryFile("w", suffix=".nvml") as file:
            host = self.broker("--nvml", paths.PROGRAMS / "libfargpu-host-nvml.so", env={"FARGPU_TEST_NVML": file.name})
            client = self.client(host, "init", "context", f"alloc a {16 * MIB}", env=asking(gpus=1, mem="64MiB"))
            self.assertEqual(client.ask("free_bytes"), f"SUCCESS {48 * MIB}")
            file.write(f"process {self.worker_of(host, client)} process_bytes {16 * MIB + 20 * MIB}\n")
            file.flush()
            wait_until(lambda: client.ask("free_bytes") == f"SUCCESS {28 * MIB}", "what the driver took charged")
            self.assertEqual(client.ask(f"alloc b {30 * MIB}"), "OUT_OF_MEMORY")
            client.must(f"alloc b {28 * MIB}")
            client.must("write a 3")
            self.assert_lives(client)

    def test_a_session_for_which_the_driver_takes_too_much(self):
        with tempfile.NamedTemporaryFile("w", suffix=".nvml") as file:
            host = self.broker("--nvml", paths.PROGRAMS / "libfargpu-host-nvml.so", "--driver-bytes-max", str(40 * MIB),
                               env={"FARGPU_TEST_NVML": file.name})
            client = self.client(host, "init", "context", f"alloc a {16 * MIB}", "write a 3",
                                 env=asking(gpus=1, mem="64MiB"))
            other = self.client(host, "init", "context", "alloc a 4096", "write a 1")

            def taken(by_driver):
                file.seek(0)
                file.truncate()
                file.write(f"process {self.worker_of(host, client)} process_bytes {16 * MIB + by_driver}\n")
                file.flush()

            taken(44 * MIB)  # much, but within the limit
            wait_until(lambda: client.ask("free_bytes") == f"SUCCESS {4 * MIB}", "what the driver took charged")
            self.assert_lives(client)
            taken(60 * MIB)
            wait_until(lambda: client.ask("sync") == "DEVICE_UNAVAILABLE", "the session's end")
            client.says("the driver has taken 60.0 MiB of device 0 for this session's code, variables and local memory")
            host.log("session stopped")
            self.assert_lives(other)

    # --- tenants -----------------------------------------------------------------------------------------------------

    TENANT = '[tenant.default]\nmemory = "96MiB"\nsessions = 2\npriority = "normal"\n'

    def test_quota_of_a_tenant(self):
        host = self.host_of(tenants=self.TENANT)
        over = self.client(host, env=asking(gpus=1, mem="128MiB"))
        self.assertEqual(over.ask("init"), "NOT_PERMITTED")
        over.says("tenant 'default' may have 96.0 MiB")
        urgent = self.client(host, env=asking(priority="latency-critical"))
        self.assertEqual(urgent.ask("init"), "NOT_PERMITTED")
        urgent.says("may not ask for priority latency-critical")
        self.client(host, "init", env=asking(gpus=1, mem="64MiB"))
        # A client that asks for no memory of its own has what is left of the tenant's.
        rest = self.client(host, "init", "context")
        self.assertEqual(rest.ask("total_bytes 0"), f"SUCCESS {32 * MIB}")
        self.assertEqual(rest.ask(f"alloc a {34 * MIB}"), "OUT_OF_MEMORY")
        rest.must(f"alloc a {30 * MIB}")
        third = self.client(host)
        self.assertEqual(third.ask("init"), "SYSTEM_NOT_READY")
        third.says("all 2 sessions of tenant 'default' are taken")
        begun = fargpu("run", "--", "true", pool=host.pool)
        self.assertEqual(begun.code, 75)
        self.assertIn("all 2 sessions of tenant 'default' are taken", begun.err)
        waits = self.start([paths.FARGPU, "run", "--pool", host.pool, "--wait", "1min", "--", "echo", "begun"])
        wait_until(lambda: len(host.logged("lease waits")) > 0, "one that waits")
        rest.finish()
        self.assertEqual(waits.wait(), 0)

    def test_no_default_tenant_no_strangers(self):
        host = self.host_of(tenants="[tenant.lab]\n")
        client = self.client(host)
        self.assertEqual(client.ask("init"), "NOT_PERMITTED")
        client.says("clients with credentials")
        self.assertEqual(fargpu("run", "--", "true", pool=host.pool).code, 126)

    def test_wrong_tenants_in_the_file(self):
        with settings_file("[tenant.lab]\nmemory = \"lots\"\n") as file:
            done = self.start([paths.FARGPUD, "--driver", paths.FAKE_DRIVER, "--listen", "127.0.0.1:0", "--config",
                               file])
            self.assertEqual(done.wait(), 2)
            self.assertIn("memory of tenant 'lab' is the text", done.err.text())

    def test_settings_that_nobody_means(self):
        for tenant, words in (("memory = 5", "memory of tenant 'lab' is the number 5; give an amount such as "
                                             "\"40GiB\", with its unit: this is 5 byte"),
                              ("host_memory = \"4k\"", "host_memory of tenant 'lab' is the text \"4k\"; give an amount "
                                                       "such as \"16GiB\", with its unit")):
            with self.subTest(tenant), settings_file(f"[tenant.lab]\n{tenant}\n") as file:
                done = self.start([paths.FARGPUD, "--driver", paths.FAKE_DRIVER, "--listen", "127.0.0.1:0", "--config",
                                   file])
                self.assertEqual(done.wait(), 2)
                self.assertIn(words, done.err.text())
        done = self.start([paths.FARGPUD, "--driver", paths.FAKE_DRIVER, "--listen", "127.0.0.1:0", "--config",
                           os.devnull, "--token-file", "/nowhere/tokens"])
        self.assertEqual(done.wait(), 2)
        self.assertIn("token_file: cannot read /nowhere/tokens", done.err.text())
        self.assertIn("`fargpu token create --file /nowhere/tokens` makes one", done.err.text())
        asked = fargpu("run", "-m", "8", "--", "true", pool="127.0.0.1:1")
        self.assertEqual(asked.code, 125)
        self.assertIn("--mem is '8'; give an amount of memory with its unit", asked.err)

    def test_devices_and_tokens_for_nobody_are_warned_of(self):
        with tempfile.TemporaryDirectory() as folder, settings_file("[tenant.lab]\ndevices = [1, 7]\n") as file:
            tokens = Path(folder, "tokens")
            made = fargpu("token", "create", "--file", tokens, "--name", "t", "--tenant", "typo", "--ttl", "1h")
            self.assertIn(f'token_file = "{tokens}" and [tenant.typo] in their settings', made.err)
            host = self.broker("--token-file", tokens, config=file)
            self.assertEqual(host.log("no such device")["device"], "7")
            self.assertEqual(host.log("token of no tenant")["tenant"], "typo")
            self.assertEqual(len(host.logged("no such device")), 1)

    # --- memory of sessions that have just ended ---------------------------------------------------------------------

    def slow_host(self, seconds):
        """A broker whose workers' processes are there for so long after their sessions."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        script = Path(folder.name, "worker")
        script.write_text(f'#!/bin/sh\n{paths.FARGPUD.parent}/fargpu-worker "$@"\nexec sleep {seconds}\n',
                          encoding="utf-8")
        script.chmod(0o755)
        return self.broker("--worker", script)

    def test_memory_that_is_being_given_back_is_waited_for(self):
        host = self.slow_host(0.7)
        for _ in range(2):
            client = self.client(host, "init", env=asking(gpus=2, mem="900MiB"))
            self.assertEqual(client.finish(), 0)
        # A client that asks for nothing in particular finds what was there.
        client = self.client(host, "init", "context", f"alloc a {900 * MIB}")
        self.assertEqual(client.finish(), 0)
        self.client(host, "init", "context", f"alloc a {900 * MIB}")

    def test_a_session_whose_job_is_over_is_waited_for(self):
        # What the program left in the socket takes its bandwidth's time, which its starter does not see.
        with settings_file('[tenant.default]\nsessions = 1\nbandwidth = "3MiB"\n') as file:
            host = self.broker(config=file)
        for _ in range(3):
            client = self.client(host, "init", "context", f"alloc a {4 * MIB}", "write a 5", through_run=True,
                                 env={"FARGPU_COMPRESS": "off"})
            self.assertEqual(client.finish(), 0, client.errors())
        self.assertEqual(len(host.logged("lease refused")), 0)

    def test_but_not_for_long(self):
        host = self.slow_host(60)
        client = self.client(host, "init", env=asking(gpus=2, mem="900MiB"))
        self.assertEqual(client.finish(), 0)
        late = self.client(host, env=asking(gpus=2, mem="900MiB"))
        self.assertEqual(late.ask("init"), "SYSTEM_NOT_READY")
        late.says("try later or wait with FARGPU_WAIT")


if __name__ == "__main__":
    unittest.main()
