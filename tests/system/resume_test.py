"""Connections break, and programs go on: over TCP and TLS, with lanes, by reset and by silence. Only time passes."""

import os
import signal
import tempfile
import time
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_gone, wait_until
from rig.proxy import Proxy

MIB = 1 << 20
LOST = "DEVICE_UNAVAILABLE"
TCP = {"FARGPU_TRANSPORT": "tcp"}
PLAIN = {"FARGPU_COMPRESS": "off"}


class Resume(SystemTest):
    def session(self, *options, env=None, listen=None, scheme=""):
        options = options if "--resume-seconds" in options else ("--resume-seconds", "60", *options)
        self.host = self.broker(*options, listen=listen)
        self.proxy = Proxy(self.host)
        self.addCleanup(self.proxy.close)
        client = self.client(scheme + self.proxy.pool, "init", "context", "load", f"alloc a {8 * MIB}", "write a 17",
                             env={**TCP, **(env or {})})
        return client

    def state(self, client):
        return [session["state"] for session in self.host.sessions() if session["pid"] == client.pid]

    def work_over_cuts(self, client, cuts=8):
        """Copies that take a while, cut in their middle. What was written is what is read. The session does not
        compress: of a block of one value there would be no middle."""
        for number in range(cuts):
            moved = self.proxy.moved
            client.begin(f"write a {number + 20}")
            wait_until(lambda: self.proxy.moved - moved > (number + 1) * 200_000, "bytes on their way")
            self.proxy.cut()
            self.assertEqual(client.answer(), "SUCCESS")
            moved = self.proxy.moved
            client.begin("check a")
            wait_until(lambda: self.proxy.moved - moved > (number + 1) * 200_000, "bytes on their way")
            self.proxy.cut()
            self.assertEqual(client.answer(), "SUCCESS same")
        self.assertEqual(client.ask("launch a"), "SUCCESS")
        self.assertEqual(client.ask("sync"), "SUCCESS")

    def assert_told(self, client, times):
        wait_until(lambda: len(self.host.logged("session resumed")) >= times, "resumed as often as it broke")
        self.assertIn("its calls wait until it is back", client.errors())
        self.assertIn("is resumed after", client.errors())
        self.assertEqual(self.state(client), ["running"])

    def test_copies_go_on_over_cuts(self):
        client = self.session(env=PLAIN)
        self.work_over_cuts(client)
        self.assert_told(client, 8)
        self.assertEqual(client.finish(), 0)
        self.assertEqual(self.host.log("session ended")["reason"], "the client left")

    def test_a_client_that_waits_for_its_turn_goes_on_waiting_over_cuts(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
            settings.write("[tenant.default]\nsessions = 1\n")
            settings.flush()
            host = self.broker("--resume-seconds", "60", config=settings.name)
        proxy = Proxy(host)
        self.addCleanup(proxy.close)
        first = self.client(host, "init")
        second = self.client(proxy.pool, env={**TCP, "FARGPU_WAIT": "2min"})
        second.begin("init")
        for _ in range(5):  # for longer than a beginning is tried again
            wait_until(lambda: host.status()["waiting"], "it waits")
            time.sleep(2.5)
            proxy.cut()
        self.assertEqual(first.finish(), 0)
        self.assertEqual(second.answer(), "SUCCESS")

    def test_copies_go_on_over_cuts_without_lanes(self):
        client = self.session(env={**PLAIN, "FARGPU_LANES": "0"})
        self.work_over_cuts(client)
        self.assert_told(client, 8)

    def test_copies_go_on_over_cuts_where_tls_is_spoken(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys"
            keys.touch(mode=0o600)
            keys.write_text("default:" + "5a" * 32 + "\n")
            client = self.session("--psk-file", str(keys), listen="tls://127.0.0.1:0", scheme="tls://",
                                  env={"FARGPU_PSK_FILE": str(keys)})
            for number in range(4):
                client.begin(f"write a {number}")
                time.sleep(0.02)  # into its middle, or not: both are right
                self.proxy.cut()
                self.assertEqual(client.answer(), "SUCCESS")
                self.assertEqual(client.ask("check a"), "SUCCESS same")
            client.says("is resumed after")
            self.assertEqual(client.finish(), 0)

    def test_a_program_that_waits_notices_a_cut_by_itself(self):
        client = self.session()
        self.proxy.cut()
        client.says("is resumed after")
        self.assert_lives(client)

    def test_silence_breaks_a_connection_too(self):
        client = self.session("--silence-seconds", "2")
        self.proxy.mute()
        client.begin("check a")
        self.assertEqual(client.answer(), "SUCCESS same")
        client.says("its calls wait until it is back")  # whichever side finds it silent first
        client.says("is resumed after")

    def test_a_session_waits_and_is_seen_to_wait(self):
        client = self.session()
        self.proxy.refuse()
        self.proxy.cut()
        self.host.log("session resuming")
        client.begin("check a")
        wait_until(lambda: self.state(client) == ["resuming"], "a session that resumes")
        self.assertIn("resuming since", fargpu("ls", pool=self.host.pool).out)
        # The worker tells what is charged now and then.
        wait_until(lambda: [sum(s["memory_bytes"]) for s in self.host.sessions()] == [8 * MIB], "memory still charged")
        self.assertEqual(self.state(client), ["resuming"])
        self.proxy.refuse(False)
        self.assertEqual(client.answer(), "SUCCESS same")
        wait_until(lambda: self.state(client) == ["running"], "a session that runs")

    def test_a_client_that_does_not_come_back_in_time(self):
        client = self.session("--resume-seconds", "2")
        worker = self.worker_of(self.host, client)
        self.proxy.refuse()
        self.proxy.cut()
        wait_gone(worker)
        self.assertIn("has not come back for 2 s", self.host.log("session ended")["reason"])
        self.proxy.refuse(False)
        self.assertEqual(client.ask("sync"), LOST)
        client.says("the session is lost")

    def test_a_client_that_is_killed_is_not_waited_for_so_long(self):
        client = self.session()
        worker = self.worker_of(self.host, client)
        # The kernel resets connections of which a killed process has not read all.
        self.assertEqual(client.ask("sync"), "SUCCESS")
        wait_until(self.proxy.quiet, "a client that has read all")
        client.process.kill()
        self.host.log("session resuming")
        wait_gone(worker)
        self.assertIn("has not come back for 5 s", self.host.log("session ended")["reason"])

    def test_a_worker_that_is_killed_is_not_waited_for(self):
        client = self.session()
        os.kill(self.worker_of(self.host, client), signal.SIGKILL)
        client.says("the session is lost")
        self.assertEqual(client.ask("sync"), LOST)
        self.assertEqual(client.finish(), 0)

    def test_a_host_that_is_gone_is_not_waited_for_without_end(self):
        host = self.broker("--resume-seconds", "1")
        client = self.client(host, "init", "context", env=TCP)
        worker = self.worker_of(host, client)
        host.process.kill()
        os.kill(worker, signal.SIGKILL)
        client.says("the session is lost")  # after ten times as long
        self.assertEqual(client.ask("sync"), LOST)

    def test_sessions_that_are_not_to_be_resumed(self):
        client = self.session("--resume-seconds", "0")
        self.proxy.cut()
        client.says("the session is lost")
        self.assertEqual(client.ask("sync"), LOST)

    def test_a_program_that_ends_meanwhile_ends(self):
        client = self.session()
        self.proxy.refuse()
        self.proxy.cut()
        client.says("its calls wait until it is back")
        self.assertEqual(client.finish(), 0)

    def leases(self):
        return [(lease["id"], lease["state"]) for lease in self.host.status()["leases"]]

    def job(self, *options):
        """A job without a session; each line that it is told begins one."""
        self.host = self.broker(*options)
        self.proxy = Proxy(self.host)
        self.addCleanup(self.proxy.close)
        job = self.start([paths.FARGPU, "run", "-n", "1", "-m", "64MiB", "--", "sh", "-c",
                          f"while read line; do {paths.FARGPU} smi -o json; done"],
                         env={**TCP, "FARGPU_POOL": self.proxy.pool})
        wait_until(lambda: self.leases() == [(1, "idle")], "the lease")
        return job

    def test_a_lease_outlasts_the_connection_of_its_job(self):
        job = self.job("--resume-seconds", "10")
        self.proxy.cut()
        self.host.log("lease outlasts its connection")
        self.assertEqual(self.leases(), [(1, "idle")])
        job.send_line("look")
        job.out.find(lambda text: '"devices": 1,' in text)  # of the host's two: those of the lease
        wait_until(lambda: self.leases() == [], "the end of the lease", seconds=30)

    def test_a_lease_ends_with_the_program_of_its_job(self):
        job = self.job("--resume-seconds", "60")
        job.kill()
        wait_until(lambda: self.leases() == [], "the end of the lease", seconds=5)

    def test_without_resuming_a_lease_ends_with_its_connection(self):
        self.job("--resume-seconds", "0")
        self.proxy.cut()
        wait_until(lambda: self.leases() == [], "the end of the lease", seconds=5)

    def test_a_worker_that_starts_is_left_to_the_next_attempt(self):
        """A worker takes longer to start than connections last. Attempts do not start one each."""
        with tempfile.TemporaryDirectory() as folder:
            slow = Path(folder) / "worker"
            slow.write_text(f'#!/bin/sh\nsleep 1.5\nexec {paths.FARGPUD.parent}/fargpu-worker "$@"\n')
            slow.chmod(0o755)
            self.host = self.broker("--resume-seconds", "60", "--worker", str(slow), "--warm-workers", "0")
            self.proxy = Proxy(self.host)
            self.addCleanup(self.proxy.close)
            client = self.client(self.proxy.pool, env=TCP)
            client.begin("init")
            for _ in range(5):
                time.sleep(0.25)
                self.proxy.cut()
            self.assertEqual(client.answer(), "SUCCESS")
            self.assertEqual(client.ask("context"), "SUCCESS")
            self.assertLessEqual(len(self.host.logged("worker started")), 2)
            self.assertEqual(client.finish(), 0)

    def test_a_connection_that_breaks_before_there_is_a_session_is_made_again(self):
        self.host = self.broker("--resume-seconds", "60")
        self.proxy = Proxy(self.host)
        self.addCleanup(self.proxy.close)
        told = ""
        for size in range(0, 3000, 150):
            with self.subTest(size):
                self.proxy.cut_after(size)
                client = self.client(self.proxy.pool, "init", "context", env={**TCP, "FARGPU_LOG": "info"})
                self.assertEqual(client.finish(), 0)
                told += client.errors()
        self.assertGreaterEqual(told.count("; it is tried again"), 5, told)
        # Sessions of which their clients have not heard.
        self.assertGreater(len(self.host.logged("session started")), 20)
        wait_until(lambda: self.host.sessions() == [], "the end of these", seconds=20)


if __name__ == "__main__":
    unittest.main()
