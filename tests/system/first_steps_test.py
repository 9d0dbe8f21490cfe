"""What somebody meets who tries fargpu for the first time: names, units, words, exit codes."""

import errno
import os
import pty
import signal
import subprocess
import tempfile
import termios
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_until
from rig.broker import settings_file

MIB = 1 << 20


class FirstSteps(SystemTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_in(self, folder, *arguments, **env):
        return self.start([paths.FARGPU, *arguments], env=env, cwd=folder)

    @staticmethod
    def read_to_end(terminal):
        """What was written to the other end of a terminal, which nobody has open any more. The kernel hands it over in
        pieces."""
        text = b""
        try:
            while piece := os.read(terminal, 4096):
                text += piece
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        return text.decode()

    # --- run ---------------------------------------------------------------------------------------------------------

    def test_files_named_from_this_folder_are_found_from_another(self):
        names = ("FARGPU_TOKEN_FILE", "FARGPU_LOG_FILE", "FARGPU_TRACE")
        done = self.run_in(self.folder, "run", "--no-check", "--", "sh", "-c", f"cd / && printenv {' '.join(names)}",
                           FARGPU_POOL="127.0.0.1:1",
                           FARGPU_TOKEN_FILE="anna.token", FARGPU_LOG_FILE="log-%p", FARGPU_TRACE="/tmp/whole")
        self.assertEqual(done.wait(), 0, done.err.text())
        self.assertEqual(done.out.text().split("\n"),
                         [str(self.folder / "anna.token"), str(self.folder / "log-%p"), "/tmp/whole"])

    def test_a_percentage_that_the_policy_does_not_keep(self):
        for policy, percent, warned in (("free", "50%", True), ("fixed", "50%", False), ("free", "100%", False),
                                        ("free", "", False)):
            with self.subTest(policy=policy, percent=percent):
                host = self.broker("--policy", policy)
                done = fargpu("run", "--", "true", pool=host.pool, env={"FARGPU_COMPUTE": percent})
                self.assertEqual((done.code, done.err.count("\n")), (0, int(warned)), done.err)
                if warned:
                    self.assertIn(f"{host.pool} shares its GPUs by the policy 'free', which does not keep to 50% of "
                                  "each", done.err)
                host.close()

    def test_settings_of_one_s_own_are_errors_of_one_s_own(self):
        host = self.broker()
        for env in ({"FARGPU_TOKEN_FILE": self.folder / "none"}, {"FARGPU_PSK_FILE": self.folder / "none"},
                    {"FARGPU_CERT": "c"}, {"FARGPU_SPIN_US": "abc"}):
            done = fargpu("run", "--", "true", pool=host.pool, env=env)
            self.assertEqual(done.code, 125, done.err)
            self.assertIn(next(iter(env)), done.err)
        for env in ({}, {"FARGPU_CA": self.folder / "none"}):
            self.assertEqual(fargpu("run", "--", "true", pool="tls://" + host.pool, env=env).code, 125)

    def test_a_host_that_shuts_down_while_it_is_waited_for(self):
        host = self.broker("--sessions-max", "1")
        self.client(host, "init")
        waits = self.start([paths.FARGPU, "run", "--pool", host.pool, "--wait", "1min", "--", "true"])
        host.log("lease waits")
        host.process.kill()
        self.assertEqual(waits.wait(), 75, waits.err.text())
        self.assertIn(f"{host.pool} closed the connection before it had answered: its fargpud has been shut down",
                      waits.err.text())
        self.assertNotIn("is it fargpud", waits.err.text())

    def test_who_waits_hears_what_for_and_is_not_told_to_wait(self):
        host = self.broker("--sessions-max", "1")
        self.client(host, "init")
        seen, terminal = pty.openpty()
        self.addCleanup(os.close, seen)
        waits = subprocess.Popen([paths.FARGPU, "run", "--pool", host.pool, "-n", "1", "-m", "8MiB", "--wait", "2s",
                                  "--", "true"], stderr=terminal)
        os.close(terminal)
        self.assertEqual(waits.wait(20), 75)
        text = self.read_to_end(seen)
        self.assertIn(f"fargpu: waiting for 1 GPU, 8.0 MiB of each at {host.pool}, up to 2 s", text)
        self.assertIn("the only session of this host is taken; try later", text)
        self.assertNotIn("--wait", text)
        # Where nobody looks on, nothing but the outcome.
        done = fargpu("run", "--wait", "1s", "--", "true", pool=host.pool)
        self.assertEqual((done.code, done.err.count("\n")), (75, 1), done.err)
        # Advice is for a program that has not waited, and names the means of waiting that it has.
        self.assertIn("try later or wait with --wait\n", fargpu("run", "--", "true", pool=host.pool).err)
        client = self.client(host)
        self.assertEqual(client.ask("init"), "SYSTEM_NOT_READY")
        client.says("taken; try later or wait with FARGPU_WAIT")

    def test_a_killed_worker_is_named_by_its_host(self):
        for transport in ("tcp", "auto"):
            with self.subTest(transport):
                host = self.broker()
                client = self.client(host, "init", "context", env={"FARGPU_TRANSPORT": transport})
                os.kill(self.worker_of(host, client), signal.SIGKILL)
                client.says(f"the session is lost: the worker at {host.pool} closed the connection")
                client.says("look at the log of fargpud there for why the worker ended")

    # --- administrators of hosts
    # ------------------------------------------------------------------------------------------------------

    def test_changes_say_what_holds_now(self):
        host = self.broker()
        done = fargpu("--pool", host.pool, "policy", "set", "fair")
        self.assertEqual((done.code, done.out), (0, "fair, turns of 10 ms, grace 50 ms\n"), done.err)
        client = self.client(host, "init")
        session = host.log("session started", pid=client.pid)["session"]
        done = fargpu("quota", session, "--weight", "300", "--pool", host.pool)
        self.assertEqual(done.code, 0, done.err)
        self.assertRegex(done.out, rf"^lease \d+ of session {session}: at most 100% of each device .* weight 300 .*; "
                                   r"the policy is fair\n$")

    def test_lives_of_credentials_have_units(self):
        file = self.folder / "tokens"

        def create(name, ttl):
            return fargpu("token", "create", "--file", file, "--name", name, "--tenant", "t", "--ttl", ttl)

        for wrong in ("90", "soon", "0d"):
            done = create("a", wrong)
            self.assertEqual(done.code, 125)
            self.assertIn(f"--ttl is '{wrong}'; give a time with its unit, for example 24h or 90d, or never", done.err)
        self.assertFalse(file.exists())
        self.assertRegex(create("a", "90d").err, r"token 'a' is good until 20\d\d-")
        self.assertIn("token 'b' never expires", create("b", "never").err)
        self.assertIn("token 'b' is worth nothing from now on", fargpu("token", "revoke", "--file", file, "b").out)
        for wrong in ("5s", "36h", "365"):
            done = fargpu("pki", "init", "--folder", self.folder / "pki", "--life", wrong)
            self.assertEqual(done.code, 125)
            self.assertIn(f"--life is '{wrong}'; give whole days", done.err)
        self.assertEqual(fargpu("pki", "init", "--folder", self.folder / "pki", "--life", "24h").code, 0)

    # --- what is shown -----------------------------------------------------------------------------------------------

    def test_hosts_and_memory_by_the_same_names_everywhere(self):
        path = self.folder / "socket"
        host = self.broker(listen=f"127.0.0.1:0,unix:{path}")
        client = self.client(host, "init", "context", f"alloc a {2 * MIB}", "write a 1")
        wait_until(lambda: "2 MiB of" in fargpu("ls", pool=f"unix:{path}").out, "small memory")
        top = fargpu("top", "--once", "-d", "0.1", pool=f"unix:{path}")
        self.assertTrue(top.out.startswith(f"unix:{path}  policy free"), top.out)
        self.assertIn("2 MiB", top.out)
        self.assertEqual(client.finish(), 0)

    def test_top_leaves_out_what_matters_least(self):
        host = self.broker()
        self.client(host, "init")
        for width, there, gone in ((60, ("program", "memory", "use", "share"), ("tenant", "weight")),
                                   (200, ("program", "tenant", "memory", "use", "share", "weight", "throttled",
                                          "not sent", "turn"), ())):
            seen, terminal = pty.openpty()
            self.addCleanup(os.close, seen)
            termios.tcsetwinsize(terminal, (20, width))
            done = subprocess.Popen([paths.FARGPU, "top", "--once", "-d", "0.1", "--pool", host.pool], stdout=terminal)
            self.assertEqual(done.wait(20), 0)
            os.close(terminal)
            text = self.read_to_end(seen)
            header = next(line for line in text.splitlines() if "session" in line)
            self.assertEqual([word for word in there if word not in header], [])
            self.assertEqual([word for word in gone if word in header], [])
            self.assertLessEqual(max(len(line) for line in text.splitlines() if "GPU" not in line), width)

    def test_help_and_version(self):
        self.assertEqual(fargpu("help").out, fargpu("--help").out)
        self.assertRegex(fargpu("version").out, r"^fargpu \d")
        self.assertIn("Exit codes", fargpu("run", "--help").out)
        self.assertNotIn("Exit codes", fargpu("token", "list", "--help").out)

    # --- doctor ------------------------------------------------------------------------------------------------------

    def test_one_fault_is_one_thing_to_mend(self):
        host = self.broker()
        for env, repair in (({"FARGPU_SPIN_US": "abc"}, "unset or correct it"),
                            ({"FARGPU_TOKEN_FILE": self.folder / "none"}, "unset or correct it")):
            done = fargpu("doctor", pool=host.pool, env=env)
            self.assertEqual((done.code, done.out.count("FAIL")), (1, 1), done.out)
            self.assertIn(repair, done.out)
            self.assertNotIn("set the credentials", done.out)

    def test_secrets_that_others_may_read(self):
        file = self.folder / "token"
        file.write_text("words\n")
        for mode, noted in ((0o644, True), (0o600, False)):
            file.chmod(mode)
            said = fargpu("doctor", env={"FARGPU_TOKEN_FILE": file}).out
            self.assertEqual(f"FARGPU_TOKEN_FILE names '{file}', which others" in said, noted)

    def test_hosts_with_spaces_between(self):
        self.assertIn("hosts are separated by commas alone", fargpu("ls", "--pool", "one:8470 two:8470").err)

    def test_what_a_tenant_may_not_have_is_no_matter_of_the_log(self):
        with settings_file('[tenant.default]\nmemory = "96MiB"\n') as file:
            host = self.broker(config=file)
        done = fargpu("doctor", pool=host.pool, env={"FARGPU_MEM": "1GiB"})
        self.assertIn("ask for what this host gives (FARGPU_GPUS, FARGPU_MEM", done.out)
        self.assertNotIn("look at the log", done.out)


if __name__ == "__main__":
    unittest.main()
