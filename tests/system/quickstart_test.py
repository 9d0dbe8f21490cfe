"""`examples/quickstart` and `examples/pool`, with what is built already: what they show, and what they leave behind.
With packages: packages_test."""

import os
import re
import shutil
import signal
import socket
import tempfile
import unittest

from rig import SystemTest, paths

PATIENCE = 60
ETCD = shutil.which("etcd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/bin")


@unittest.skipIf(paths.SANITIZED, "its program is built by nvcc, which puts no sanitizer in")
class Quickstart(SystemTest):
    def quickstart(self, build=paths.BUILD):
        return self.start([paths.SOURCE / "examples" / "quickstart", "--no-build"], env={"FARGPU_BUILD": build})

    def port(self, script):
        return int(script.out.find(lambda line: re.search(r"on 127\.0\.0\.1:(\d+)$", line))[0][1])

    def assert_nobody_listens(self, port):
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)

    def test_shows_the_programs_result_and_ends(self):
        script = self.quickstart()
        port = self.port(script)
        self.assertEqual(script.wait(PATIENCE), 0, script.err.text())
        said = script.out.text()
        for part in ("PASSED", "fargpu ls", "GPU 0", "round trips"):
            self.assertIn(part, said)
        self.assertEqual(script.err.text(), "")
        self.assert_nobody_listens(port)

    def test_stopped_leaves_nothing(self):
        script = self.quickstart()
        port = self.port(script)
        script.signal(signal.SIGINT)
        self.assertEqual(script.wait(PATIENCE), 130)
        self.assert_nobody_listens(port)

    def test_a_folder_without_packages_is_named(self):
        with tempfile.TemporaryDirectory() as empty:
            for options, env in (("--packages", empty), {}), ((), {"FARGPU_PACKAGES": empty}):
                script = self.start([paths.SOURCE / "examples" / "quickstart", *options], env=env)
                self.assertEqual(script.wait(PATIENCE), 1)
                self.assertIn(f"{empty} has no package fargpu-client for {os.uname().machine}", script.err.text())

    def test_without_a_build_names_the_repair(self):
        with tempfile.TemporaryDirectory() as empty:
            script = self.quickstart(empty)
            self.assertEqual(script.wait(PATIENCE), 1)
        self.assertIn("run " + str(paths.SOURCE / "examples" / "quickstart") + " without --no-build", script.err.text())

    def pool(self, *options, **env):
        return self.start([paths.SOURCE / "examples" / "pool", *options], env={"FARGPU_BUILD": paths.BUILD, **env})

    def test_a_pool_whose_third_host_dies(self):
        script = self.pool()
        self.assertEqual(script.wait(PATIENCE), 0, script.err.text())
        said = script.out.text()
        for part in ("round 4: 3 devices, each value is 24", "the pool: 3 of 3 hosts answer, 3 GPUs",
                     "round 12: 2 devices", "PASSED"):
            self.assertIn(part, said)
        self.assertEqual(said.count("is lost"), 1, said)
        for port in re.search(r"FARGPU_POOL=(.*)", said)[1].split(","):
            self.assert_nobody_listens(int(port.rpartition(":")[2]))

    @unittest.skipUnless(ETCD, "there is no etcd on this machine (package etcd-server)")
    def test_a_pool_by_a_registry_of_which_a_host_and_a_member_of_etcd_die(self):
        script = self.pool("--registry")
        self.assertEqual(script.wait(2 * PATIENCE), 0, script.err.text() + script.out.text())
        said = script.out.text()
        for part in ("round 4: 2 devices, each value is 12", "pool example: 4 of 4 hosts serve, 2 of 4 GPUs free",
                     "round 12: 1 devices", "pool example: 3 of 3 hosts serve", "round 2: 2 devices, each value is 6"):
            self.assertIn(part, said)
        self.assertEqual(said.count("PASSED"), 2, said)
        self.assertEqual(said.count("is lost"), 1, said)
        for address in re.findall(r"127\.0\.0\.1:(\d+)", said):
            self.assert_nobody_listens(int(address))

    def test_without_etcd_a_pool_by_a_registry_says_what_to_install(self):
        with tempfile.TemporaryDirectory() as folder:
            for tool in ("bash", "dirname", "mktemp", "rm"):
                os.symlink(shutil.which(tool), os.path.join(folder, tool))
            if shutil.which("etcd", path="/usr/sbin:/usr/local/bin"):
                self.skipTest("etcd is where the script looks by itself")
            script = self.pool("--registry", PATH=folder)
            self.assertEqual(script.wait(PATIENCE), 1)
        self.assertIn("there is no etcd on this machine; on Debian: apt-get install etcd-server", script.err.text())


if __name__ == "__main__":
    unittest.main()
