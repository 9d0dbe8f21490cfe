"""What workers give up, and what they are kept apart by."""

import os
import pwd
import re
import signal
import tempfile
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_gone
from rig.broker import settings_file
from rig.wire import VERSION


def status(pid):
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
                if ":\t" in line)


@unittest.skipIf(paths.SANITIZED, "sanitizers need what is given up")
class Sandbox(SystemTest):
    def serve(self, *options, **more):
        host = self.broker(*options, **more)
        client = self.client(host, "init", "context", "load", "alloc a 100000", "write a 5")
        self.assert_lives(client)
        return host, client, self.worker_of(host, client)

    def test_workers_are_in_it(self):
        _, client, worker = self.serve(env={"AWS_SECRET_ACCESS_KEY": "x", "FARGPU_TOKEN": "x", "LC_ALL": "C"})
        self.assertEqual((status(worker)["NoNewPrivs"], status(worker)["Seccomp"]), ("1", "2"))
        for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            self.assertEqual(int(status(worker)[kind], 16), 0, kind)
        names = {variable.partition(b"=")[0] for variable in Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")}
        self.assertIn(b"LC_ALL", names)
        self.assertFalse(names & {b"AWS_SECRET_ACCESS_KEY", b"FARGPU_TOKEN"})
        limits = Path(f"/proc/{worker}/limits").read_text(encoding="ascii")
        self.assertRegex(limits, r"Max core file size +0 +0 ")
        self.assertEqual(client.finish(), 0)

    def test_an_image_folder_that_takes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            host = self.broker("--image-folder", folder)
            os.chmod(folder, 0o500)
            client = self.client(host, "init", "context", "load")
            self.assertEqual(client.finish(), 0)
            self.assertEqual(host.log("images not kept")["folder"], folder)
            os.chmod(folder, 0o700)

    @unittest.skipUnless(os.geteuid() == 0, "only root is told")
    def test_root_is_warned_where_there_are_tenants(self):
        with settings_file("[tenant.default]\n") as settings:
            host = self.broker(config=settings)
            self.assertIn("worker_user", host.log("workers run as root")["meaning"])

    def test_it_can_be_switched_off(self):
        _, _, worker = self.serve("--no-sandbox")
        self.assertEqual(status(worker)["Seccomp"], status(os.getpid())["Seccomp"])

    @unittest.skipUnless(os.geteuid() == 0, "only root can make workers another user")
    def test_another_user(self):
        nobody = pwd.getpwnam("nobody")
        if any(not folder.stat().st_mode & 0o001 for folder in Path(paths.FAKE_DRIVER).parents):
            self.skipTest("the build is where other users cannot read it")
        _, _, worker = self.serve("--worker-user", "nobody")
        self.assertEqual(status(worker)["Uid"].split(), [str(nobody.pw_uid)] * 4)
        self.assertEqual(status(worker)["Gid"].split(), [str(nobody.pw_gid)] * 4)

    @unittest.skipUnless(os.geteuid() == 0, "only root can make workers another user")
    def test_another_user_with_the_capabilities_that_the_guide_gives_the_service(self):
        if any(not folder.stat().st_mode & 0o001 for folder in Path(paths.FAKE_DRIVER).parents):
            self.skipTest("the build is where other users cannot read it")
        guide = (paths.SOURCE / "docs/guide/installing.md").read_text(encoding="utf-8")
        named = re.search(r"^CapabilityBoundingSet=(.*)$", guide, re.MULTILINE)[1].lower().replace("cap_", "+").split()
        host, _, worker = self.serve("--worker-user", "nobody",
                                     wrapper=("setpriv", f"--bounding-set=-all,{','.join(named)}", "--no-new-privs"))
        self.assertEqual(status(worker)["Uid"].split(), [str(pwd.getpwnam("nobody").pw_uid)] * 4)
        os.kill(worker, signal.SIGSTOP)  # which a broker without CAP_KILL could not end
        self.assertEqual(fargpu("end", host.log("session started")["session"], pool=host.pool).code, 0)
        wait_gone(worker)

    @unittest.skipUnless(os.geteuid() == 0, "only root can make workers another user")
    def test_another_user_without_capabilities(self):
        host = self.start(["setpriv", "--bounding-set=-all", paths.FARGPUD, "--driver", paths.FAKE_DRIVER, "--listen",
                           "127.0.0.1:0", "--config", os.devnull, "--worker-user", "nobody"])
        self.assertEqual(host.wait(), 2)
        self.assertIn("CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_KILL", host.err.text())

    def test_a_user_that_there_is_not(self):
        host = self.start([paths.FARGPUD, "--driver", paths.FAKE_DRIVER, "--listen", "127.0.0.1:0", "--config",
                           os.devnull, "--worker-user", "nemo"])
        self.assertEqual(host.wait(), 2)
        self.assertIn("worker_user is 'nemo'; this machine has no such user", host.err.text())


class Tenants(SystemTest):
    def test_gpu_code_is_kept_apart(self):
        """What one tenant has sent is sent again by another, and kept in a folder of its own."""
        with tempfile.TemporaryDirectory() as folder, settings_file("[tenant.default]\n[tenant.lab]\n") as settings:
            tokens = Path(folder, "tokens")
            token = self.start([paths.FARGPU, "token", "create", "--file", tokens, "--tenant", "lab", "--name", "t"])
            self.assertEqual(token.wait(), 0)
            host = self.broker("--image-folder", str(Path(folder, "images")), "--token-file", tokens, config=settings)
            one = self.client(host, "init", "context", "load")
            other = self.client(host, "init", "context", "load", env={"FARGPU_TOKEN": token.out.text().strip()})
            del one, other
            found = [path.relative_to(folder).parts[1] for path in Path(folder, "images").rglob("*") if path.is_file()]
            self.assertEqual(set(found), {"default", "lab"})
            images = [path for path in Path(folder, "images").rglob("*") if path.is_file()
                      and re.fullmatch("[0-9a-f]{64}", path.name)]
            self.assertEqual(len(images), 2)


class Callers(SystemTest):
    def test_one_address_has_so_many(self):
        host = self.broker("--callers-per-address-max", "3")
        first, *others = [self.connection(host) for _ in range(3)]
        self.connection(host)
        self.assertTrue(first.is_closed())
        host.log("connection cut", reason="too many connections from one address")
        others[-1].say(f"(hello = ({VERSION}))")
        self.assertIn("helloAnswer", others[-1].hear())
        self.client(host, "init")


if __name__ == "__main__":
    unittest.main()
