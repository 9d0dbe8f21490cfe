"""`fargpu ls`: hosts, devices and sessions, for people and for programs."""

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

from rig import SystemTest, fargpu, paths, wait_until
from rig.wire import VERSION, deaf_host, listener


class Listing(SystemTest):
    def json(self, pool, code=0):
        done = fargpu("ls", "-o", "json", pool=pool)
        self.assertEqual((done.code, done.err), (code, ""), done.out)
        return json.loads(done.out)

    def test_top_fits_its_terminal(self):
        host = self.broker(env={"FARGPU_FAKE_DEVICES": 8})
        seen, terminal = pty.openpty()
        self.addCleanup(os.close, seen)
        termios.tcsetwinsize(terminal, (5, 40))
        top = subprocess.Popen([paths.FARGPU, "top", "--delay", "0.1", "--pool", host.pool], stdin=subprocess.DEVNULL,
                               stdout=terminal)
        os.close(terminal)
        try:
            text = b""
            while text.count(b"\033[2J") < 3:
                text += os.read(seen, 4096)
        finally:
            top.terminate()
            top.wait()
        look = text.decode().split("\033[H\033[2J")[1].splitlines()
        self.assertEqual(len(look), 4)  # and the cursor below
        self.assertLessEqual(max(map(len, look)), 40)
        self.assertIn("GPU 1", look[2])
        self.assertEqual(look[3], "  and 7 more lines")

    def keys_come_singly(self, terminal):
        return not termios.tcgetattr(terminal)[3] & (termios.ICANON | termios.ECHO)

    def test_top_leaves_its_terminal_as_it_was(self):
        host = self.broker()
        seen, terminal = pty.openpty()
        self.addCleanup(os.close, seen)
        self.addCleanup(os.close, terminal)
        termios.tcsetwinsize(terminal, (24, 80))
        before = termios.tcgetattr(terminal)

        def shown(top, looks=2):
            text = b""
            while text.count(b"q ends this") < looks:
                self.assertTrue(select.select([seen], [], [], 20)[0], text)
                text += os.read(seen, 4096)
            self.assertIsNone(top.poll())

        ends = (("q", lambda top: os.write(seen, b"xq"), 0),
                ("Ctrl-C", lambda top: os.write(seen, b"\x03"), -signal.SIGINT),
                ("SIGTERM", lambda top: top.terminate(), -signal.SIGTERM))
        for what, end, code in ends:
            with self.subTest(what):
                # The terminal is its own, and it is in front there.
                top = subprocess.Popen([paths.FARGPU, "top", "--delay", "0.1", "--pool", host.pool], stdin=terminal,
                                       stdout=terminal,
                                       start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
                try:
                    shown(top)
                    self.assertTrue(self.keys_come_singly(terminal))
                    end(top)
                    self.assertEqual(top.wait(20), code)
                finally:
                    top.kill()
                    top.wait()
                self.assertEqual(termios.tcgetattr(terminal), before)
                termios.tcflush(seen, termios.TCIOFLUSH)

    def test_top_that_is_stopped_leaves_its_terminal_and_takes_it_again(self):
        host = self.broker()
        seen, terminal = pty.openpty()
        self.addCleanup(os.close, seen)
        self.addCleanup(os.close, terminal)
        before = termios.tcgetattr(terminal)
        # As a shell does it: in front is a group of its own, and its parent, of the same session, waits for it.
        shell = f"""if True:
            import fcntl, os, signal, subprocess, sys, termios
            def in_front():
                os.setpgid(0, 0)
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                os.tcsetpgrp(0, os.getpid())
                signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            top = subprocess.Popen([{str(paths.FARGPU)!r}, "top", "--delay", "0.1", "--pool", {host.pool!r}],
                                   preexec_fn=in_front)
            print("stopped", os.WIFSTOPPED(os.waitpid(top.pid, os.WUNTRACED)[1]), file=sys.stderr, flush=True)
            os.read(int(sys.argv[1]), 1)
            os.kill(top.pid, signal.SIGCONT)
            print("ended", top.wait(), file=sys.stderr, flush=True)
            """
        wait, go_on = os.pipe()
        self.addCleanup(os.close, go_on)
        started = subprocess.Popen([sys.executable, "-c", shell, str(wait)], stdin=terminal, stdout=terminal,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True, pass_fds=[wait])
        os.close(wait)
        self.addCleanup(started.stderr.close)
        self.addCleanup(started.wait)
        self.addCleanup(started.kill)
        wait_until(lambda: self.keys_come_singly(terminal), "keys")
        os.write(seen, b"\x1a")
        self.assertEqual(started.stderr.readline(), "stopped True\n")
        self.assertEqual(termios.tcgetattr(terminal), before)
        os.write(go_on, b"x")
        wait_until(lambda: self.keys_come_singly(terminal), "keys")
        os.write(seen, b"q")
        self.assertEqual(started.stderr.readline(), "ended 0\n")
        self.assertEqual(termios.tcgetattr(terminal), before)

    def test_silent_hosts_are_waited_for_together_and_once(self):
        """Each takes five seconds to be given up."""
        host = self.broker()
        with deaf_host() as deaf, listener(lambda connection: connection.recv(1 << 16)
                                           and connection.recv(1)) as silent:
            for verb in (("ls",), ("top", "--once")):
                begin = time.monotonic()
                done = fargpu(*verb, "-o", "json", pool=f"{deaf},{silent},{host.pool}")
                took = time.monotonic() - begin
                first, second, third = json.loads(done.out)
                self.assertEqual(done.code, 125)
                self.assertEqual([h["host"] for h in (first, second, third)], [deaf, silent, host.pool])
                self.assertIn("timed out", first["error"])
                self.assertIn("does not answer", second["error"])
                self.assertEqual(len(third["devices"]), 2)
                self.assertLess(took, 9, verb)

    def test_while_sessions_run_and_after(self):
        host = self.broker()
        client = self.client(host, "init", "context", f"alloc a {64 << 20}", "write a 1")
        other = self.client(host, "init")

        # How many calls a session has made is told to the broker now and then, also when the program makes no more.
        listed = wait_until(lambda: [h for h in self.json(host.pool) if any(s["calls"] for s in h["sessions"])],
                            "calls that were made", seconds=2)[0]
        self.assertEqual([d["name"] for d in listed["devices"]], ["Fake GPU 0", "Fake GPU 1"])
        self.assertEqual((listed["driver_version"], listed["draining"], listed["sessions_max"]), (13000, False, 256))
        self.assertEqual({s["pid"] for s in listed["sessions"]}, {client.pid, other.pid})
        session = next(s for s in listed["sessions"] if s["pid"] == client.pid)
        self.assertEqual(session["program"], "commanded")
        self.assertGreaterEqual(session["memory_bytes"][0], 64 << 20)
        self.assertEqual(session["memory_bytes"][0], listed["devices"][0]["used_bytes"])
        self.assertGreater(session["calls"], 0)

        text = fargpu("ls", pool=host.pool)
        self.assertEqual(text.code, 0)
        self.assertRegex(text.out, rf"(?m)^ +{session['id']} +default +commanded .* {client.pid} .* 64 MiB ")
        self.assertRegex(text.out, r"GPU 0 +Fake GPU 0 .* 64 MiB of +1\.0 GiB +GPU-")

        self.assertEqual((client.finish(), other.finish()), (0, 0))
        after = wait_until(lambda: [h for h in self.json(host.pool) if not h["sessions"]], "no sessions")[0]
        self.assertEqual([d["used_bytes"] for d in after["devices"]], [0, 0])
        self.assertIn("no sessions", fargpu("ls", pool=host.pool).out)

    def test_asked_again_and_again(self):
        """Nothing of the host's facts is used up by telling them."""
        host = self.broker("--warm-workers", "0")
        connection = self.connection(host)
        connection.say(f"(hello = ({VERSION}))")
        self.assertIn("helloAnswer", connection.hear())
        for _ in range(100):
            connection.say("(statusRequest = void)")
            self.assertIn(b"Fake GPU 1", connection.frame()[3])

    def test_one_host_of_two_is_away(self):
        host = self.broker()
        pool = f"127.0.0.1:1,{host.pool}"
        away, here = self.json(pool, code=125)
        self.assertIn("cannot connect to 127.0.0.1:1", away["error"])
        self.assertEqual(len(here["devices"]), 2)
        text = fargpu("ls", pool=pool)
        self.assertEqual(text.code, 125)
        self.assertIn("127.0.0.1:1  ! cannot connect", text.out)
        self.assertIn("Fake GPU 1", text.out)
        self.assertRegex(text.out, r"the pool: 1 of 2 hosts answer, 2 GPUs, .* of .* used, 0 sessions, 0 waiting\n")
        self.assertNotIn("the pool:", fargpu("ls", pool=host.pool).out)

    def test_no_host_of_two_serves(self):
        """Each is named with what is wrong with it, to every command."""
        busy = self.broker("--sessions-max", "1")
        self.client(busy, "init")
        pool = f"127.0.0.1:1,{busy.pool}"
        run = fargpu("run", "--", "true", pool=pool, env={"FARGPU_MEM": "1GiB"})
        self.assertEqual(run.code, 75, run.err)
        self.assertRegex(run.err, r"^fargpu: none of the 2 hosts .*\(1\) cannot connect to 127.0.0.1:1 .*\(2\) "
                                  rf"{busy.pool}: the only session of this host")
        self.assertEqual(run.err.count("\n"), 1)
        smi = fargpu("smi", pool="127.0.0.1:1,127.0.0.1:2")
        self.assertEqual(smi.code, 125)
        self.assertRegex(smi.err, r"^fargpu: cannot connect to 127.0.0.1:1 .*\nfargpu: cannot connect to 127.0.0.1:2 ")

    def test_devices_of_hosts_without_a_registry(self):
        one, two = self.broker(), self.broker(env={"FARGPU_FAKE_DEVICES": 1, "FARGPU_FAKE_HOST": 2})
        pool = f"{one.pool},127.0.0.1:1,{two.pool},{one.pool}"
        done = fargpu("smi", "-o", "json", pool=pool)
        self.assertEqual(done.code, 125)
        told = json.loads(done.out)
        self.assertEqual([device["host"] for device in told["devices"]], [one.pool, one.pool, two.pool])
        self.assertEqual([error["host"] for error in told["errors"]], ["127.0.0.1:1"])
        self.assertEqual(told["host"], f"{one.pool}, {two.pool}")
        text = fargpu("smi", "--model", "GPU 1", pool=pool)
        self.assertIn("127.0.0.1:1  ! cannot connect", text.out)
        self.assertNotIn("2 hosts", text.out)  # the other one has no such device
        text = fargpu("smi", pool=pool).out
        self.assertRegex(text, r"\| 2 hosts, 3 GPUs .* MiB / 3072 MiB ")

    def test_a_host_that_is_named_twice_is_looked_at_once(self):
        host, other = self.broker(), self.broker(env={"FARGPU_FAKE_HOST": 2})
        pool = f"{host.pool},{host.pool},{other.pool}"
        for verb in (("ls",), ("top", "--once", "-d", "0.1"), ("quota",)):
            done = fargpu(*verb, "-o", "json", pool=pool)
            self.assertEqual(done.code, 0, done.err)
            self.assertEqual([one["host"] for one in json.loads(done.out)], [host.pool, other.pool])

    def test_no_pool(self):
        done = fargpu("ls")
        self.assertEqual(done.code, 125)
        self.assertIn("set FARGPU_POOL=", done.err)

    def test_names_that_are_no_text(self):
        """File names are bytes. One program's odd name must not hide the sessions of all others."""
        host = self.broker()
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(os.fsencode(folder), b"a\x1b[31mb\xff\xfe" + b"\xc3\xa4" * 70)
            shutil.copy(paths.PROGRAMS / "commanded", name)
            odd = self.start([name], env={"FARGPU_POOL": host.pool, "LD_LIBRARY_PATH": paths.LIBRARIES})
            odd.send_line("init")
            odd.out.find(lambda line: line == "SUCCESS")
            self.client(host, "init")
            programs = [s["program"] for s in self.json(host.pool)[0]["sessions"]]
            self.assertEqual(len(programs), 2)
            self.assertIn("commanded", programs)
            text = fargpu("ls", pool=host.pool)
            self.assertEqual(text.code, 0, text.err)
            self.assertIn("commanded", text.out)
            self.assertNotIn("\x1b", text.out)


if __name__ == "__main__":
    unittest.main()
