"""What `cmake --install` lays out works from where it lies, and from where it was moved to."""

import os
import re
import stat
import tempfile
import unittest
from pathlib import Path

from rig import SystemTest, paths
from rig.broker import settings_file
from rig.process import run

# Settings whose default depends on the machine.
MACHINE = ("image_folder", "worker ", "runtime_folder")


class Installed(SystemTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.prefix = Path(folder.name, "first")
        done = run(["cmake", "--install", paths.BUILD, "--prefix", self.prefix])
        self.assertEqual(done.code, 0, done.err)

    def only(self, pattern):
        found = list(self.prefix.glob(pattern))
        self.assertEqual(len(found), 1, pattern)
        return found[0]

    def assert_works(self):
        """A session between installed parts alone."""
        worker = self.prefix / "libexec" / "fargpu" / "fargpu-worker"
        host = self.start([self.prefix / "bin" / "fargpud", "--driver", paths.FAKE_DRIVER, "--listen", "127.0.0.1:0",
                           "--config", os.devnull,
                           "--image-folder", ""])
        port = host.err.find(lambda line: " listening " in line and line.rsplit("port=", 1)[1])[0]
        children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text(encoding="ascii").split()
        self.assertEqual([os.readlink(f"/proc/{pid}/exe") for pid in children], [str(worker)])
        fargpu = self.prefix / "bin" / "fargpu"
        environment = {"FARGPU_POOL": f"127.0.0.1:{port}"}
        libraries = self.only("lib*/**/fargpu/libcuda.so.1").parent
        done = run([fargpu, "run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"], env=environment)
        self.assertEqual((done.code, done.out.strip(), done.err), (0, str(libraries), ""))
        program = self.start([fargpu, "run", "--", paths.PROGRAMS / "commanded"], env=environment)
        for command in ("init", "context", "alloc a 4096", "write a 3"):
            program.send_line(command)
            program.send_line("check a" if command.startswith("write") else "count")
        program.out.find(lambda line: line == "SUCCESS same")
        with open(f"/proc/{program.pid}/maps", encoding="utf-8") as maps:
            self.assertIn(str(libraries / "libcuda.so"), maps.read())
        done = run([fargpu, "doctor"], env=environment)
        self.assertEqual(done.code, 0, done.out)
        self.assertIn(str(libraries), done.out)
        program.close()
        host.close()

    def test_where_it_was_put_and_elsewhere(self):
        self.assert_works()
        self.prefix = self.prefix.rename(self.prefix.parent / "second")
        self.assert_works()

    def test_what_is_there(self):
        texts = [f"share/man/{page}" for page in ("man1/fargpu.1", "man5/fargpud.toml.5", "man7/fargpu-environment.7",
                                                  "man8/fargpud.8")]
        for program in ("fargpu", "fargpud"):
            texts += [f"share/bash-completion/completions/{program}", f"share/zsh/site-functions/_{program}",
                      f"share/zsh/vendor-completions/_{program}", f"share/fish/vendor_completions.d/{program}.fish"]
        texts += [f"share/doc/fargpu-{component}/copyright"
                  for component in ("client", "dev", "etcd", "server", "softgpu", "ucx")]
        texts += [f"share/doc/fargpu-dev/examples/{name}"
                  for name in ("graph.cu", "vector_add_driver.cpp", "vector_add_runtime.cu")]
        texts += ["share/fargpu/monitoring/fargpu-alerts.yaml", "share/fargpu/monitoring/fargpu-dashboard.json",
                  "share/fargpu/example-site/fargpud.toml", "share/fargpu/example-site/make-credentials",
                  "libexec/fargpu/vector_add_runtime"]
        files = sorted(str(p.relative_to(self.prefix)) for p in self.prefix.rglob("*") if not p.is_dir())
        library = str(self.only("lib*/**/fargpu/libcuda.so.1").parent.relative_to(self.prefix))
        if paths.SANITIZED:  # with one there are no packages, nor what comes with them
            texts = []
        self.assertEqual(sorted(f for f in files if not f.endswith((".so",))), sorted([
            "bin/fargpu", "bin/fargpud", "libexec/fargpu/fargpu-worker", "lib/systemd/system/fargpud.service",
            "lib/sysusers.d/fargpud.conf", "share/fargpu/fargpud.toml",
            f"{library}/libcuda.so.1", f"{library}/libnvidia-ml.so.1", *texts]))
        for path in self.prefix.rglob("*"):
            self.assertFalse(path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID), path)

    def test_the_service_has_a_user_and_does_not_overrule_the_settings(self):
        service = (self.prefix / "lib" / "systemd" / "system" / "fargpud.service").read_text(encoding="utf-8")
        users = (self.prefix / "lib" / "sysusers.d" / "fargpud.conf").read_text(encoding="utf-8")
        user = re.search(r"^User=(.*)$", service, re.MULTILINE)[1]
        self.assertRegex(users, rf"(?m)^u {user} ")
        self.assertNotIn("DynamicUser", service)  # the keys' files would have no owner
        self.assertIn("\nExecReload=/bin/sh -c 'kill -HUP $MAINPID'\n", service)
        environment = dict(line.split("=", 2)[1:] for line in service.splitlines() if line.startswith("Environment="))
        self.assertFalse([name for name in environment if name.startswith("FARGPUD_")])
        cache = re.search(r"^CacheDirectory=(.*)$", service, re.MULTILINE)[1]
        fargpud = self.prefix / "bin" / "fargpud"
        for text, folder in (("", f"/var/cache/{cache}/images"), ('image_folder = "/elsewhere"\n', "/elsewhere")):
            with settings_file(text) as file:
                shown = run([fargpud, "--config", file, "--show-config"], env=environment)
            self.assertIn(f'image_folder = "{folder}"', shown.out)

    @unittest.skipIf(paths.SANITIZED, "without packages there is no example")
    def test_root_can_administer_the_example_site(self):
        site = self.prefix / "share" / "fargpu" / "example-site" / "fargpud.toml"
        done = run([self.prefix / "bin" / "fargpud", "--config", site, "--show-config"])
        self.assertIn('listen = "tls://0.0.0.0:8470,unix:/run/fargpu/socket"', done.out)

    def test_the_sample_of_settings_is_one(self):
        sample = self.prefix / "share" / "fargpu" / "fargpud.toml"
        done = run([self.prefix / "bin" / "fargpud", "--config", sample, "--show-config"])
        self.assertEqual((done.code, done.err), (0, ""))
        uncommented = Path(self.prefix, "all.toml")
        text = sample.read_text(encoding="utf-8")
        lines = [re.sub(r"^# (?=[a-z_]+ = |\[tenant\.)", "", line) for line in text.splitlines()]
        self.assertIn("[tenant.lab]", lines)
        uncommented.write_text("\n".join(lines), encoding="utf-8")
        same = run([self.prefix / "bin" / "fargpud", "--config", uncommented, "--show-config"])
        self.assertEqual((same.code, same.err), (0, ""))
        settings, tenants = same.out.split("\n\n", 1)
        self.assertIn("[tenant.lab]", tenants)
        values = [line.split("   # ")[0] for line in settings.splitlines()
                  if not line.startswith(MACHINE)]
        self.assertEqual(values, [line.split("   # ")[0] for line in done.out.splitlines()
                                  if not line.startswith(MACHINE)])
        self.assertNotIn("# default", settings)


if __name__ == "__main__":
    unittest.main()
