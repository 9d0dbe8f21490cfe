"""What fargpud is told: by flags, environment, a file, or nobody; and what it refuses to be told."""

import os
import signal
import socket
import tempfile
import tomllib
import unittest
from pathlib import Path

from rig import SystemTest, paths, wait_until
from rig.broker import settings_file
from rig.process import run


class Settings(SystemTest):
    def shown(self, *options, env=None):
        done = run([paths.FARGPUD, *options, "--show-config"], env=env)
        self.assertEqual((done.code, done.err), (0, ""))
        lines = [line.split("   # ") for line in done.out.split("\n\n")[0].splitlines()]
        return {text.split(" = ")[0]: (text.split(" = ")[1], origin) for text, origin in lines}

    def refused(self, *options, env=None, driver=paths.FAKE_DRIVER, config="/dev/null"):
        done = run([paths.FARGPUD, "--driver", driver, "--config", config, *options], env=env)
        self.assertNotEqual(done.code, 0)
        return done

    def test_flags_over_environment_over_file_over_default(self):
        with settings_file('sessions_max = 11\nspin_us = 12\nwarm_workers = 13\nlog_level = "debug"\n') as file:
            shown = self.shown("--config", file, "--warm-workers", "33",
                               env={"FARGPUD_SPIN_US": 22, "FARGPUD_WARM_WORKERS": 23})
            self.assertEqual(shown["sessions_max"], ("11", f"file {file}"))
            self.assertEqual(shown["spin_us"], ("22", "environment variable FARGPUD_SPIN_US"))
            self.assertEqual(shown["warm_workers"], ("33", "flag --warm-workers"))
            self.assertEqual(shown["drain_seconds"], ("30", "default"))
            self.assertEqual(shown["log_level"], ('"debug"', f"file {file}"))

    def test_what_is_shown_is_a_settings_file(self):
        text = ('devices = [0, 1]\nimage_bytes_max = "4GiB"\nsandbox = false\n[tenant.lab]\nmemory = "40GiB"\nusers = '
                '[1, 2]\n[tenant."b.c"]\n')
        with settings_file(text) as file:
            first = run([paths.FARGPUD, "--config", file, "--show-config", "--tls-key", 'a "key"\\\t', "--image-folder",
                         "/i"])
        self.assertEqual((first.code, first.err), (0, ""))
        shown = tomllib.loads(first.out)
        self.assertEqual((shown["devices"], shown["image_bytes_max"], shown["sandbox"]), ("0,1", 4 << 30, False))
        self.assertEqual(shown["tls_key"], os.getcwd() + '/a "key"\\\t')
        self.assertEqual(shown["tenant"], {"lab": {"memory": "40GiB", "users": [1, 2]}, "b.c": {}})
        with settings_file(first.out) as file:
            again = run([paths.FARGPUD, "--config", file, "--show-config"])
        self.assertEqual((again.code, again.err), (0, ""))
        self.assertEqual(tomllib.loads(again.out), shown)

    def test_paths_of_the_file_count_from_its_folder(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
            file = Path(folder, "fargpud.toml")
            file.write_text('token_file = "tokens"\ntls_key = "pki/../pki/host.key"\nimage_folder = ""\ndriver = '
                            '"libcuda.so.1"\nnvml = "lib/nvml.so"\n'
                            'psk_file = "/etc/keys"\n', encoding="utf-8")
            done = run([paths.FARGPUD, "--config", os.path.relpath(file, elsewhere), "--show-config",
                        "--tls-certificate", "host.crt"], cwd=elsewhere)
            self.assertEqual((done.code, done.err), (0, ""))
            shown = tomllib.loads(done.out)
            self.assertEqual([shown[name] for name in ("token_file", "tls_key", "image_folder", "driver", "nvml",
                                                       "psk_file", "tls_certificate")],
                             [f"{folder}/tokens", f"{folder}/pki/host.key", "", "libcuda.so.1", f"{folder}/lib/nvml.so",
                              "/etc/keys", f"{elsewhere}/host.crt"])

    def test_exit_codes_are_told(self):
        self.assertIn("Exit codes:\n  0", run([paths.FARGPUD, "--help"]).out)

    def test_they_count(self):
        with settings_file("sessions_max = 3\nwarm_workers = 2\n") as file:
            host = self.broker(config=file, env={"FARGPUD_WARM_WORKERS": 0, "FARGPUD_DEVICES": "1"})
            status = host.status()
            self.assertEqual((status["sessions_max"], [d["name"] for d in status["devices"]]), (3, ["Fake GPU 1"]))
            client = self.client(host, "init")
            self.assertEqual(client.ask("device 0"), "SUCCESS Fake GPU 1")
            self.assertEqual(len(host.workers()), 1)  # none is kept warm

    def test_mistakes_are_named_with_their_place(self):
        with settings_file("session_max = 3\n") as file:
            self.assertIn(f"{file} (line 1): there is no setting 'session_max'; perhaps 'sessions_max' is meant",
                          self.refused(config=file).err)
        with settings_file("sessions_max = \n") as file:
            self.assertIn(f"{file}: ", self.refused(config=file).err)
        with settings_file("[tenant.lab]\nsessions = 'two'\n") as file:
            self.assertIn(f"{file} (line 2): sessions of tenant 'lab' is the text \"two\"; give a whole number from 1",
                          self.refused(config=file).err)
        with settings_file("[tenant.lab]\nmemori = '1GiB'\n") as file:
            self.assertIn(f"{file} (line 2): tenant 'lab' has no setting 'memori'; perhaps 'memory' is meant",
                          self.refused(config=file).err)
        with settings_file("[tenant.lab]\n\ndrain_seconds = 10\n") as file:
            self.assertIn(f"{file} (line 3): 'drain_seconds' is a setting of the host and not of tenant 'lab'",
                          self.refused(config=file).err)
        with settings_file("warm_workers = 1\nsessions_max = 'x'\n") as file:
            self.assertIn(f"{file} (line 2): sessions_max is the text \"x\"; a whole number is wanted",
                          self.refused(config=file).err)
        self.assertIn("no-such-file.toml", self.refused(config="no-such-file.toml").err)
        self.assertIn("sessions_max is 'x' (environment variable FARGPUD_SESSIONS_MAX)",
                      self.refused(env={"FARGPUD_SESSIONS_MAX": "x"}).err)
        self.assertIn("'nowhere' is not host:port", self.refused("--listen", "nowhere").err)
        self.assertIn("'foo' is no transport", self.refused("--listen", "foo://127.0.0.1:1").err)
        self.assertIn("which has a space", self.refused("--listen", "127.0.0.1:1, 127.0.0.1:2").err)
        self.assertIn("name an address that this machine has",
                      self.refused("--listen", "192.0.2.7:8470", "--insecure").err)
        self.assertEqual(self.refused("--no-such-flag").code, 2)
        self.assertIn("there is no option '--lisen'; perhaps '--listen' is meant",
                      self.refused("--lisen", "127.0.0.1:0").err)

    def test_an_image_folder_that_cannot_be(self):
        warned = self.broker("--image-folder", "/proc/nowhere").log("no image folder")
        self.assertEqual(warned["folder"], "/proc/nowhere")
        warned = self.broker("--content-folder", "/proc/nowhere").log("no content folder")
        self.assertEqual(warned["folder"], "/proc/nowhere")

    def test_only_the_loopback_without_a_word(self):
        for address in ("0.0.0.0:0", "[::]:0", "192.0.2.7:0", "127.0.0.1:0,0.0.0.0:0"):
            done = self.refused("--listen", address)
            self.assertEqual(done.code, 2)
            self.assertIn("--insecure", done.err)
            self.assertIn("can be reached from other machines", done.err)
        warned = self.broker("--insecure", listen="0.0.0.0:0")
        self.assertIn("every machine that reaches this port can use the GPUs", warned.log("insecure")["meaning"])

    def test_several_addresses(self):
        host = self.broker(listen="127.0.0.1:0,127.0.0.1:0")
        wait_until(lambda: len(host.logged("listening")) == 2, "both")
        for event in host.logged("listening"):
            self.client("127.0.0.1:" + event["port"], "init")

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = "127.0.0.1:{}".format(other.getsockname()[1])
            for options in (("--listen", taken), ("--listen", "127.0.0.1:0", "--metrics-listen", taken)):
                done = self.refused(*options)
                # Which a service manager tries again; another exit code than that of wrong settings.
                self.assertEqual(done.code, 1)
                self.assertIn("Address already in use", done.err)

    def test_a_misspelt_variable_is_told(self):
        host = self.broker(env={"FARGPUD_POLCY": "fair"})
        self.assertEqual(host.log("no such setting")["variable"], "FARGPUD_POLCY")

    def test_what_is_shown_is_checked(self):
        with settings_file("[tenant.lab]\nbandwidth = \"fast\"\n") as file:
            done = self.refused("--show-config", config=file)
            self.assertEqual(done.code, 2)
            self.assertIn("bandwidth of tenant 'lab' is the text \"fast\"; give an amount such as \"100MB\"", done.err)

    def test_no_driver(self):
        done = self.refused("--listen", "127.0.0.1:0", driver="/no/such/driver.so")
        self.assertEqual(done.code, 1)
        self.assertIn("/no/such/driver.so", done.err)
        self.assertIn("name another by --driver", done.err)
        done = self.refused("--listen", "127.0.0.1:0", "--devices", "0,9")
        self.assertEqual(done.code, 1)
        self.assertIn("the driver does not have all of the devices 0,9", done.err)
        self.assertIn("devices is '0,9': name those that the driver has", done.err)
        self.assertNotIn("repair the driver", done.err)

    def test_what_no_driver_can_mend(self):
        for options, said in ((["--devices", "1,1"], "it names device 1 twice"),
                              (["--worker", "/no/such/worker"],
                               "worker is '/no/such/worker', which cannot be run (No such file or directory)"),
                              (["--worker-user", "nosuch"], "worker_user is 'nosuch'; this machine has no such user")):
            done = self.refused("--listen", "127.0.0.1:0", *options)
            self.assertEqual(done.code, 2)
            self.assertIn(said, done.err)
            self.assertNotIn("driver", done.err)

    def test_a_reload_names_what_waits_for_another_start(self):
        with settings_file("spin_us = 1\n") as file:
            host = self.broker("--quantum-ms", "5", config=file)

            def reload(text):
                Path(file).write_text(text, encoding="utf-8")
                place = host.place()
                host.process.signal(signal.SIGHUP)
                return place
            place = reload("spin_us = 2\nquantum_ms = 7\npolicy = \"fair\"\n[tenant.default]\n")
            # the flag counts more than the file
            self.assertEqual(host.log("not in use yet", place)["settings"], "spin_us, policy")
            self.assertEqual(host.status()["policy"], "free")
            place = reload("spin_us = 1\n")
            host.log("reloaded", place)
            place = reload("policy = \"fairest\"\n")
            self.assertIn("policy is 'fairest'", host.log("not reloaded", place)["reason"])
            self.assertEqual(len(host.logged("not in use yet")), 1)

    def test_files_that_only_others_may_read(self):
        if os.getuid() != 0 or any(not folder.stat().st_mode & 0o001 for folder in paths.FARGPUD.parents):
            self.skipTest("only root can be somebody else, who must find the build")
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            secret = Path(folder, "secret")
            secret.write_text("", encoding="utf-8")
            secret.chmod(0o600)
            for options in (["--token-file", secret], ["--psk-file", secret],
                            ["--tls-certificate", "/dev/null", "--tls-key", secret]):
                done = run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", paths.FARGPUD, "--config",
                            os.devnull, "--driver", paths.FAKE_DRIVER,
                            "--image-folder", "", *options])
                self.assertEqual(done.code, 2)
                self.assertIn(f"cannot read {secret} (Permission denied); fargpud runs as", done.err)
                self.assertNotIn("makes one", done.err)
        done = self.refused("--token-file", "/no/such/tokens")
        self.assertIn("`fargpu token create --file /no/such/tokens` makes one", done.err)


if __name__ == "__main__":
    unittest.main()
