"""Sessions by RDMA: UCX's own TCP takes the place of a card."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_gone, wait_until
from rig.process import environment
from rig.proxy import Proxy

MIB = 1 << 20
LOST = "DEVICE_UNAVAILABLE"
RDMA = paths.UCX_CLIENT
AUTO = {**RDMA, "FARGPU_TRANSPORT": "auto", "FARGPU_LOG": "info"}
BY_UCX = paths.UCX_BROKER
# What a program's environment may say to UCX, and what would break a session if it were heard.
CONTRARY = {"UCX_TLS": "self", "UCX_NET_DEVICES": "none0", "UCX_LOG_LEVEL": "trace", "UCX_HANDLE_ERRORS": "freeze,bt",
            "UCX_MEM_EVENTS": "y", "UCX_LOG_FILE": "/dev/full"}


@unittest.skipUnless(paths.UCX_PLUGIN.exists(), "built without UCX")
class Rdma(SystemTest):
    def use(self, client):
        for command in ("init", "context", f"alloc a {3 * MIB}", "write a 7", "pin a", "write_pinned a", "sync",
                        "check a"):
            self.assertIn(client.ask(command), ("SUCCESS", "SUCCESS same"), command)


class Choice(Rdma):
    def test_where_it_is_asked_for(self):
        client = self.client(self.broker(*BY_UCX), env={**RDMA, "FARGPU_LOG": "info"})
        self.use(client)
        client.says("by RDMA (tcp/lo")
        self.assertEqual(client.finish(), 0)

    def test_by_the_address_of_the_host(self):
        host = self.broker(*BY_UCX)
        client = self.client(f"rdma://{host.pool}", env=AUTO)
        self.use(client)
        client.says("by RDMA (tcp/lo")

    def test_variables_of_ucx_do_not_count(self):
        host = self.broker(*BY_UCX, env=CONTRARY)
        client = self.client(host, env={**RDMA, **CONTRARY, "FARGPU_LOG": "info"})
        self.use(client)
        client.says("by RDMA (tcp/lo")

    def test_by_itself_where_both_have_it(self):
        client = self.client(self.broker(*BY_UCX, "--no-shared-memory"), env=AUTO)
        self.use(client)
        client.says("by RDMA (tcp/lo")

    def refused(self, words, *options, **env):
        """It is refused where nothing else will do, and goes by TCP where something else does."""
        host = self.broker("--no-shared-memory", *options)
        client = self.client(host, env={**RDMA, **env})
        self.assertEqual(client.ask("init"), "SYSTEM_NOT_READY")
        client.says(words)
        other = self.client(host, env={**AUTO, **env})
        self.use(other)
        other.says("by TCP")
        return other

    def test_the_host_allows_it_on_no_network(self):
        words = "the setting rdma_networks"
        self.refused(words, *BY_UCX, "--rdma-networks", "10.99.0.0/16").says(words)

    def test_the_client_allows_it_to_no_host(self):
        self.refused("in none of the networks of FARGPU_RDMA", *BY_UCX, FARGPU_RDMA="10.99.0.0/16")

    def test_there_is_no_card(self):
        self.refused("on this machine: the network interface lo has no RDMA card", FARGPU_RDMA_TRANSPORTS="cards")

    def test_the_host_has_no_card(self):
        words = "the host says: the network interface lo has no RDMA card"
        self.refused(words).says(words)

    def test_what_is_no_network_or_transport(self):
        host = self.broker()
        for variable, value in (("FARGPU_RDMA", "10.1"), ("FARGPU_RDMA_TRANSPORTS", "pigeon")):
            client = self.client(host, env={variable: value})
            self.assertEqual(client.ask("init"), "NO_DEVICE")
            client.says(f"{variable} is '{value}'")
        for options, words in ((("--rdma-networks", "10.1"), "rdma_networks is '10.1': '10.1' is no network"),
                               (("--rdma-transports", "pigeon"), "use cards, tcp or memory"),
                               (("--rdma-transports", "tcp"), "which the sandbox of workers forbids")):
            refused = self.start([paths.FARGPUD, "--driver", paths.FAKE_DRIVER, "--listen", "127.0.0.1:0", "--config",
                                  os.devnull, *options])
            self.assertEqual(refused.wait(), 2)
            self.assertIn(words, refused.err.text())

    def test_gpudirect_needs_a_card_and_says_so(self):
        said = {"text": "GPUDirect is off: rdma_transports is not cards"}
        for option, wanted in (("auto", True), ("on", True), ("off", False)):
            host = self.broker(*BY_UCX, "--gpudirect", option)
            client = self.client(host, env={**RDMA, "FARGPU_LANES": "2"})
            for command in ("init", "context", f"alloc a {24 * MIB}", "write a 7", "check a"):
                self.assertIn(client.ask(command), ("SUCCESS", "SUCCESS same"), command)
            if wanted:
                host.log("session note", **said)
            self.assertEqual(client.finish(), 0)
            host.log("session ended")
            self.assertEqual(len(host.logged("session note")), 1 if wanted else 0)

    def test_the_operator_sees_it(self):
        host = self.broker(*BY_UCX)
        host.log("RDMA offered", interface="lo", devices="lo")
        client = self.client(host, env=RDMA)
        self.use(client)
        host.log("session by RDMA")
        self.assertIn(" rdma ", fargpu("ls", pool=host.pool).out)
        self.assertEqual(client.finish(), 0)

    def test_the_operator_sees_why_not(self):
        host = self.broker("--rdma-networks", "127.0.0.0/8")
        self.assertIn("lo has no RDMA card", host.log("no RDMA", interface="lo")["reason"])
        host = self.broker("--rdma-networks", "10.99.0.0/16")
        self.assertIn("no address of this machine", host.log("no RDMA", interface="none")["reason"])

    def test_doctor_shows_it(self):
        done = fargpu("doctor", pool=self.broker(*BY_UCX).pool, env=RDMA)
        self.assertEqual(done.code, 0, done.out)
        self.assertIn("RDMA by UCX 1.", done.out)
        self.assertIn("its calls go by RDMA (tcp/lo", done.out)
        self.assertIn("round trip", done.out)

    def test_a_plugin_of_another_version(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
                shutil.copy(paths.LIBRARIES / name, folder)
            client = self.client(self.broker(*BY_UCX), env={**RDMA, "LD_LIBRARY_PATH": folder})
            self.assertEqual(client.ask("init"), "SYSTEM_NOT_READY")
            client.says("the plugin libfargpu-ucx.so is missing; install the package fargpu-ucx")
            source = Path(folder, "other.c")
            source.write_text('static const struct {unsigned version; const char* release;} other = {3, "0.0.1"};\n'
                              "const void* fargpu_rdma_interface(void) {return &other;}\n", encoding="ascii")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{folder}/libfargpu-ucx.so", source], check=True)
            client = self.client(self.broker(*BY_UCX), env={**RDMA, "LD_LIBRARY_PATH": folder})
            self.assertEqual(client.ask("init"), "SYSTEM_NOT_READY")
            client.says("libfargpu-ucx.so is of fargpu 0.0.1")


class Loss(Rdma):
    def setUp(self):
        self.host = self.broker(*BY_UCX)
        self.neighbour = self.client(self.host, "init", "context", "load", f"alloc a {MIB}", "write a 17", env=RDMA)
        self.client_of = self.client(self.host, "init", "context", "load", f"alloc a {MIB}", "write a 5", env=RDMA)
        self.worker = self.worker_of(self.host, self.client_of)

    def test_the_worker_is_killed(self):
        os.kill(self.worker, signal.SIGKILL)
        self.assertEqual(self.client_of.ask("sync"), LOST)
        self.assertEqual(self.client_of.ask("write a 5"), LOST)
        self.assert_lives(self.neighbour)

    def test_the_client_is_killed(self):
        self.client_of.begin_loop("write_forever a")
        self.client_of.process.kill()
        self.assertNotIn("died", self.host.log("session ended", worker=self.worker)["reason"])
        wait_gone(self.worker)
        wait_until(lambda: len(self.host.sessions()) == 1, "the neighbour's session alone")
        self.assert_lives(self.neighbour)

    def test_the_client_leaves(self):
        self.assertEqual(self.client_of.finish(), 0)
        self.assertEqual(self.host.log("session ended", worker=self.worker)["reason"], "the client left")


@unittest.skipUnless(paths.UCX_PLUGIN.exists(), "built without UCX")
class Break(Rdma):
    """The connection breaks by which each end knows that the other is there. Then a session by RDMA is resumed."""

    def setUp(self):
        self.host = self.broker(*BY_UCX, "--resume-seconds", "60")
        self.proxy = Proxy(self.host)
        self.addCleanup(self.proxy.close)
        self.program = self.client(self.proxy.pool, "init", "context", "load", f"alloc a {8 * MIB}", "write a 17",
                                   env={**RDMA, "FARGPU_LOG": "info"})

    def test_copies_go_on_over_cuts(self):
        for number in range(6):
            self.program.begin(f"write a {number}")
            time.sleep(0.004 * number)  # into its middle, or not: both are right
            self.proxy.cut()
            self.assertEqual(self.program.answer(), "SUCCESS")
            self.program.begin("check a")
            self.proxy.cut()
            self.assertEqual(self.program.answer(), "SUCCESS same")
            wait_until(lambda: len(self.host.logged("session resumed")) > number, "resumed once more")
            self.assertEqual(self.program.ask("check a"), "SUCCESS same")
        self.program.says("its calls wait until it is back")
        self.program.says("is resumed after")
        self.assertNotIn("by TCP", self.program.errors())
        time.sleep(1)  # the last cut has been noticed
        # A client may be back before its worker has noticed that it was gone.
        wait_until(lambda: len(self.host.logged("session resumed")) >= len(self.host.logged("session resuming")),
                   "a session that runs")
        self.assertEqual(self.program.finish(), 0)
        self.assertEqual(self.host.log("session ended")["reason"], "the client left")

    def test_a_session_waits_and_is_seen_to_wait(self):
        self.proxy.refuse()
        self.proxy.cut()
        self.host.log("session resuming")
        self.program.begin("check a")
        wait_until(lambda: [one["state"] for one in self.host.sessions()] == ["resuming"], "a session that resumes")
        self.proxy.refuse(False)
        self.assertEqual(self.program.answer(), "SUCCESS same")
        self.host.log("session resumed")

    def test_a_worker_that_is_killed_is_not_waited_for(self):
        begun = time.monotonic()
        os.kill(self.worker_of(self.host, self.program), signal.SIGKILL)
        self.program.says("the session is lost")
        self.assertEqual(self.program.ask("sync"), LOST)
        self.assertLess(time.monotonic() - begun, 30)

    def test_a_client_that_is_killed_is_not_waited_for_so_long(self):
        worker = self.worker_of(self.host, self.program)
        self.program.process.kill()
        self.assertIn("has not come back for 5 s", self.host.log("session ended", worker=worker)["reason"])


@unittest.skipUnless(paths.UCX_PLUGIN.exists(), "built without UCX")
class Program(Rdma):
    """What a program notices of UCX: nothing."""

    def test_nothing_is_left_in_it(self):
        host = self.broker(*BY_UCX)
        program = Path(__file__).parent / "programs" / "rdma_guest.py"
        done = subprocess.run(["/usr/bin/python3", program, paths.LIBRARIES / "libcuda.so.1"], text=True,
                              env=environment({**RDMA, **CONTRARY, "FARGPU_POOL": host.pool}), capture_output=True,
                              timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "in order\n", ""))


if __name__ == "__main__":
    unittest.main()
