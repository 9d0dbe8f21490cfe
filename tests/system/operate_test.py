"""Operating a host: ending sessions, draining, quotas, certificates that end, what the service manager and monitors are
told."""

import json
import os
import shutil
import signal
import socket
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_gone, wait_until
from rig.broker import settings_file
from rig.process import run

MIB = 1 << 20
ANY_WAY = {"FARGPU_TRANSPORT": "auto"}  # else tests go by TCP

OLD_AUTHORITY = """-----BEGIN CERTIFICATE-----
MIIBSTCB8aADAgECAgEBMAoGCCqGSM49BAMCMBUxEzARBgNVBAMMCmZhcmdwdSBv
bGQwHhcNMTkwMTAxMDAwMDAwWhcNMjAwMTAxMDAwMDAwWjAVMRMwEQYDVQQDDApm
YXJncHUgb2xkMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEv9ouvrx4a41mrOvO
LSjABsGJAkNc2+QD+tiQhWPQ6Robw5V+h7OzjVGtta6IKKZbN+CqgSYHrSswnx6K
D6MH9KMyMDAwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQUOADRqYTVSOfwMiKo
eeG7z3apibcwCgYIKoZIzj0EAwIDRwAwRAIgNCmhydoqK2NAbUp4vjvC3RhuzHC9
yJQi8aBCnI5gFggCIB5NGOGI2si+pg8sRF2BWXbF6FLi/hWO5vTs3+kPViVg
-----END CERTIFICATE-----
"""  # ended in 2020


class Operating(SystemTest):
    def must(self, *arguments, host=None, **more):
        done = fargpu(*arguments, pool=host.pool if host else None, **more)
        self.assertEqual(done.code, 0, done.err)
        return done.out

    def tokens_of(self, folder, *tenants):
        """The name of a file of tokens, and a token of each tenant."""
        file = Path(folder, "tokens")
        return file, {tenant: self.must("token", "create", "--file", file, "--name", tenant, "--tenant", tenant,
                                        "--ttl", "1h").strip()
                      for tenant in tenants}

    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Path(folder.name)


class Sessions(Operating):
    def test_an_administrator_ends_a_session(self):
        host = self.broker()
        client, other = (self.client(host, "init", "context", f"alloc a {MIB}", "write a 3") for _ in range(2))
        number = host.log("session started", pid=client.pid)["session"]
        worker = self.worker_of(host, client)
        self.assertIn(f"session {number} ends", self.must("end", number, host=host))
        client.says("an administrator of the host has ended it")
        self.assertEqual(client.ask("sync"), "DEVICE_UNAVAILABLE")
        wait_gone(worker)
        self.assert_lives(other)
        self.assertEqual(host.log("session ended by request")["session"], number)
        again = fargpu("end", number, pool=host.pool)
        self.assertEqual(again.code, 125)
        self.assertIn(f"there is no session {number}", again.err)

    def test_a_worker_that_does_not_hear_is_killed(self):
        host = self.broker()
        client = self.client(host, "init", "context")
        worker = self.worker_of(host, client)
        os.kill(worker, signal.SIGSTOP)
        self.must("end", host.log("session started")["session"], host=host)
        self.assertEqual(host.status()["leases"][0]["state"], "ending")
        wait_gone(worker)
        host.log("worker killed", worker=worker)

    def test_others_may_not(self):
        folder = self.folder()
        file, token = self.tokens_of(folder, "lab", "ops")
        with settings_file("[tenant.lab]\n[tenant.ops]\nadministrator = true\n") as settings:
            host = self.broker("--token-file", file, config=settings)
        client = self.client(host, "init", env={"FARGPU_TOKEN": token["lab"]})
        number = host.log("session started", pid=client.pid)["session"]
        for command in (["end", number], ["drain"], ["resume"]):
            done = fargpu(*command, pool=host.pool, env={"FARGPU_TOKEN": token["lab"]})
            self.assertEqual(done.code, 126)
            self.assertIn("only administrators", done.err)
        self.must("end", number, host=host, env={"FARGPU_TOKEN": token["ops"]})
        client.says("an administrator of the host has ended it")


class Draining(Operating):
    def state(self, host):
        return host.status()["state"]

    def test_a_drained_host_takes_no_new_sessions_until_it_is_resumed(self):
        host = self.broker()
        job = {"FARGPU_JOB": "5a" * 16}
        client = self.client(host, "init", "context", f"alloc a {MIB}", "write a 3", env=job)
        self.assertEqual(self.state(host), "serving")
        self.assertIn("no new sessions until `fargpu resume`; 1 session", self.must("drain", host=host))
        self.assertEqual(self.state(host), "draining")
        self.assertIn(", draining\n", self.must("ls", host=host))
        done = fargpu("run", "--", "true", pool=host.pool)
        self.assertEqual(done.code, 75)
        self.assertIn("this host is drained by its administrator", done.err)
        self.assert_lives(client)
        self.client(host, "init", env=job)  # a job that has begun goes on
        self.assertIn("takes new sessions", self.must("resume", host=host))
        self.assertEqual(self.state(host), "serving")
        self.client(host, "init")
        self.assertEqual(fargpu("resume", pool=host.pool).code, 125)

    def test_a_drain_ends_by_itself(self):
        host = self.broker()
        self.must("drain", "--for", "2s", host=host)
        self.assertIn("draining until 2", self.must("ls", host=host))
        self.assertEqual(self.client(host).ask("init"), "SYSTEM_NOT_READY")
        wait_until(lambda: self.state(host) == "serving", "the end of the drain")
        self.client(host, "init")
        done = fargpu("drain", "--for", "soon", pool=host.pool)
        self.assertEqual(done.code, 125)
        self.assertIn("--for is 'soon'", done.err)

    def test_who_waits_is_told_at_once(self):
        host = self.broker("--sessions-max", "1")
        self.client(host, "init")
        waiting = self.start([paths.FARGPU, "run", "--wait", "1h", "--", "true"], env={"FARGPU_POOL": host.pool})
        wait_until(lambda: host.status()["waiting"], "one that waits")
        self.must("drain", host=host)
        self.assertEqual(waiting.wait(), 75)

    def test_a_program_is_told_when_its_host_shuts_down(self):
        host = self.broker("--drain-seconds", "60")
        client = self.client(host, "init", "context")
        self.must("drain", host=host)
        host.terminate()
        client.says("this host shuts down; this session ends in 60 s")
        self.assertEqual(self.state(host), "stopping")
        self.assertIn("shutting down until 2", self.must("ls", host=host))
        for command in ("drain", "resume"):
            done = fargpu(command, pool=host.pool)
            self.assertEqual(done.code, 125)
            self.assertIn("shutting down", done.err)
        self.assertEqual(client.finish(), 0)
        self.assertEqual(host.wait(), 0)

    def test_the_time_that_sessions_have_can_be_changed(self):
        with settings_file("drain_seconds = 3600\n") as file:
            host = self.broker(config=file)
            client = self.client(host, "init")
            Path(file).write_text("drain_seconds = 1\n", encoding="utf-8")
            host.process.signal(signal.SIGHUP)
            host.log("reloaded")
            self.assertFalse(host.logged("not in use yet"))
            host.terminate()
            client.says("this session ends in 1 s")
            self.assertEqual(host.wait(), 0)


class Quotas(Operating):
    def test_limits_use_and_queue_are_shown(self):
        folder = self.folder()
        file, token = self.tokens_of(folder, "lab", "ops")
        with settings_file('[tenant.lab]\nmemory = "64MiB"\ncompute = "150%"\nsessions = 1\nweight = 200\n'
                           "[tenant.ops]\nadministrator = true\n") as settings:
            host = self.broker("--token-file", file, config=settings)
        lab, ops = ({"FARGPU_TOKEN": token[tenant]} for tenant in ("lab", "ops"))
        self.client(host, "init", env={**lab, "FARGPU_MEM": "32MiB", "FARGPU_COMPUTE": "50%"})
        waiting = self.start([paths.FARGPU, "run", "--wait", "1h", "--", "true"], env={"FARGPU_POOL": host.pool, **lab})
        wait_until(lambda: json.loads(self.must("quota", "-o", "json", host=host, env=lab))[0]["tenants"][0]["waiting"],
                   "one that waits")
        shown = {one["name"]: one
                 for one in json.loads(self.must("quota", "-o", "json", host=host, env=ops))[0]["tenants"]}
        self.assertEqual(set(shown), {"lab", "ops"})
        lease = shown["lab"]
        self.assertEqual((lease["memory_bytes"] % (32 * MIB), lease["memory_limit_bytes"],
                          lease["compute_limit_percent"], lease["sessions"],
                          lease["sessions_limit"], lease["leases"], lease["waiting"], lease["weight"]),
                         (0, 64 * MIB, 150, 1, 1, 1, 1, 200))
        self.assertGreater(lease["memory_bytes"], 0)
        table = self.must("quota", host=host, env=lab)
        self.assertRegex(table, r"lab +\d+ MiB of 64 MiB +\d+% of 150% +1 of 1 ")
        self.assertNotIn("ops", table)
        listed = json.loads(self.must("ls", "-o", "json", host=host, env=lab))[0]
        self.assertIn("the only session of tenant 'lab' is taken", listed["waiting"][0]["reason"])
        for verb in (("ls",), ("top", "--once", "-d", "0.1")):
            self.assertRegex(self.must(*verb, host=host, env=lab),
                             r"waiting since \d+ s: lab, fargpu of \d+ on .*: the only session")
        waiting.kill()
        self.assertEqual(fargpu("quota", "--weight", "3", pool=host.pool).code, 125)

    def test_a_lease_says_whether_it_runs(self):
        host = self.broker()
        self.client(host, "init", env={"FARGPU_MEM": "32MiB"})
        held = self.start([paths.FARGPU, "run", "--", "sleep", "100"], env={"FARGPU_POOL": host.pool})
        wait_until(lambda: len(host.status()["leases"]) == 2, "the lease of fargpu run")
        self.assertEqual(sorted(lease["state"] for lease in host.status()["leases"]), ["idle", "running"])
        self.assertRegex(self.must("ls", host=host), r"normal +running\n")
        held.kill()

    def test_a_tenant_of_low_priority_runs_programs_that_ask_for_none(self):
        with settings_file('[tenant.default]\npriority = "best-effort"\n') as file:
            host = self.broker(config=file)
        self.client(host, "init")
        self.assertEqual(host.status()["leases"][0]["priority"], "best-effort")
        self.must("run", "--", "true", host=host)
        done = fargpu("run", "--priority", "normal", "--", "true", pool=host.pool)
        self.assertEqual(done.code, 126)
        self.assertIn("may not ask for priority normal, at most for best-effort", done.err)


class OutOfMemory(Operating):
    def test_the_bound_that_was_met_is_named_once(self):
        host = self.broker()
        client = self.client(host, "init", "context", f"alloc a {24 * MIB}", env={"FARGPU_MEM": "32MiB"})
        for _ in range(2):
            self.assertEqual(client.ask(f"alloc b {24 * MIB}"), "OUT_OF_MEMORY")
        client.says("24.0 MiB of device memory is asked for, the lease has 8.0 MiB of its 32.0 MiB left; ask for more "
                    "(`fargpu run -m`, FARGPU_MEM)")
        self.assertEqual(client.finish(), 0)
        self.assertEqual(client.errors().count("is asked for"), 1)

    def test_a_tenants_quota(self):
        with settings_file('[tenant.default]\nmemory = "32MiB"\n') as file:
            host = self.broker(config=file)
        self.client(host, "init", "context", f"alloc a {24 * MIB}")
        client = self.client(host, "init", "context")
        self.assertEqual(client.ask(f"alloc b {24 * MIB}"), "OUT_OF_MEMORY")
        client.says("the tenant has 8.0 MiB left of the 32.0 MiB for its leases")


class Keepers(Operating):
    def test_the_user_of_fargpud_is_an_administrator_at_its_socket(self):
        path = self.folder() / "socket"
        with settings_file(f"[tenant.other]\nusers = [{os.getuid() + 1}]\n") as file:
            host = self.broker(listen=f"127.0.0.1:0,unix:{path}", config=file)
        host.pool = f"unix:{path}"
        self.must("drain", host=host)
        self.must("resume", host=host)
        self.assertIn("other", self.must("quota", host=host))
        done = fargpu("run", "--", "true", pool=host.pool)
        self.assertEqual(done.code, 126)
        self.assertIn("are of no tenant here", done.err)


class Certificates(Operating):
    def setUp(self):
        self.pki = self.folder() / "pki"

    def host(self, life, *options):
        self.must("pki", "init", "--folder", self.pki)
        self.must("pki", "issue", "--folder", self.pki, "--server", "gpuhost", "--host", "127.0.0.1", "--life", life)
        return self.broker("--tls-certificate", self.pki / "gpuhost.crt", "--tls-key", self.pki / "gpuhost.key",
                           "--tls-client-ca", self.pki / "ca.crt", *options)

    def test_one_that_ends_soon_is_told_of(self):
        host = self.host("20d", "--metrics-listen", "127.0.0.1:0")
        told = host.log("certificate expires")
        self.assertEqual((told["setting"], told["file"]), ("tls_certificate", str(self.pki / "gpuhost.crt")))
        # less the time since it was issued, or nothing of it within a second
        self.assertIn(told["left"], ("19 days", "20 days"))
        self.assertEqual(len(host.logged("certificate expires")), 1)  # the authority lasts ten years
        with urllib.request.urlopen(f"http://127.0.0.1:{host.log('metrics')['port']}/metrics", timeout=10) as answer:
            ends = {line.split('setting="')[1].split('"')[0]: float(line.split()[-1])
                    for line in answer.read().decode().splitlines()
                    if line.startswith("fargpu_certificate_expiry_timestamp_seconds{")}
        days = {setting: (end - time.time()) / 86400 for setting, end in ends.items()}
        self.assertAlmostEqual(days["tls_certificate"], 20, delta=0.1)
        self.assertAlmostEqual(days["tls_client_ca"], 3650, delta=1)

    def test_tokens_that_end_soon(self):
        file, _ = self.tokens_of(self.folder(), "default")
        self.must("token", "create", "--file", file, "--name", "long", "--tenant", "default", "--ttl", "90d")
        host = self.host("90d", "--token-file", file, "--metrics-listen", "127.0.0.1:0")
        self.assertEqual(host.log("token expires")["token"], "default")
        self.assertEqual(len(host.logged("token expires")), 1)
        with urllib.request.urlopen(f"http://127.0.0.1:{host.log('metrics')['port']}/metrics", timeout=10) as answer:
            told = {line.split('token="')[1].split('"')[0]: float(line.split()[-1])
                    for line in answer.read().decode().splitlines()
                    if line.startswith("fargpu_token_expiry_timestamp_seconds{")}
        self.assertAlmostEqual((told["long"] - time.time()) / 86400, 90, delta=0.1)
        self.assertFalse(host.logged("certificate expires"))

    def test_doctor_looks_at_the_clients_own(self):
        self.host("20d")
        done = fargpu("doctor", pool="none", env={"FARGPU_CA": self.pki / "ca.crt",
                                                  "FARGPU_CERT": self.pki / "gpuhost.crt"})
        self.assertIn(f"note  FARGPU_CERT '{self.pki}/gpuhost.crt' expires on 2", done.out)
        self.assertNotIn("ca.crt", done.out)
        # Of a bundle only what is in use must be good.
        bundle, good = self.folder() / "bundle.crt", (self.pki / "ca.crt").read_text()
        bundle.write_text(OLD_AUTHORITY + good)
        done = fargpu("doctor", pool="none", env={"FARGPU_CA": bundle})
        self.assertIn(f"note  FARGPU_CA '{bundle}': 1 of its 2 certificates have expired", done.out)
        self.assertNotIn(f"FAIL  FARGPU_CA '{bundle}'", done.out)
        bundle.write_text(OLD_AUTHORITY)
        done = fargpu("doctor", pool="none", env={"FARGPU_CA": bundle})
        self.assertIn(f"FAIL  FARGPU_CA '{bundle}' has expired on 2020-01-01", done.out)


class Service(Operating):
    def test_the_service_manager_is_told(self):
        path = str(self.folder() / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(20)
            host = self.broker("--drain-seconds", "600", env={"NOTIFY_SOCKET": path})
            # Its socket, to be kept for the next one.
            told, descriptors, _, _ = socket.recv_fds(manager, 1000, 1)
            self.assertEqual(told.decode(), f"FDSTORE=1\nFDNAME=127.0.0.1-{host.port}")
            with socket.socket(fileno=descriptors[0]) as kept:
                self.assertEqual(kept.getsockname(), ("127.0.0.1", host.port))
            self.assertEqual(manager.recv(1000), b"READY=1\nSTATUS=serving")
            client = self.client(host, "init")
            self.assertNotIn(b"NOTIFY_SOCKET", Path(f"/proc/{self.worker_of(host, client)}/environ").read_bytes())
            self.must("drain", host=host)
            self.assertEqual(manager.recv(1000), b"STATUS=drained: no new sessions")
            host.process.signal(signal.SIGTERM)
            told = dict(line.split("=", 1) for line in manager.recv(1000).decode().splitlines())
            self.assertEqual(told["STOPPING"], "1")
            # However long sessions have, the manager waits for them.
            self.assertGreater(int(told["EXTEND_TIMEOUT_USEC"]), 600e6)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is missing")
    def test_the_unit_exposes_little(self):
        unit = self.folder() / "fargpud.service"
        unit.write_text((paths.SOURCE / "server/broker/fargpud.service.in").read_text().replace("@bindir@", "/usr/bin"))
        done = run(["systemd-analyze", "security", "--offline=yes", "--threshold=30", unit])  # in tenths
        self.assertEqual(done.code, 0, done.out + done.err)
        self.assertIn("Overall exposure level", done.out)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is missing")
    def test_systemd_understands_the_unit(self):
        text = (paths.SOURCE / "server/broker/fargpud.service.in").read_text().replace("@bindir@",
                                                                                       str(paths.FARGPUD.parent))
        unit = self.folder() / "fargpud.service"

        def complaints(of):
            """It names what it does not know, and ends with 0 all the same."""
            unit.write_text(of)
            done = run(["systemd-analyze", "verify", "--man=no", unit])
            self.assertEqual(done.code, 0, done.err)
            return [line for line in (done.out + done.err).splitlines() if "fargpud" in line]
        self.assertEqual(complaints(text), [])
        self.assertIn("ProtectClok", "".join(complaints(text.replace("ProtectClock", "ProtectClok"))))

    def check(self, text, *options, driver=paths.FAKE_DRIVER):
        listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
        with settings_file(text) as file:
            return run([paths.FARGPUD, "--check", "--config", file, "--driver", driver, *listen, "--image-folder", "",
                        *options])

    def test_settings_can_be_checked(self):
        done = self.check("[tenant.default]\n[tenant.ops]\n")
        # Root is told to give workers a user of their own.
        said = [line for line in done.err.splitlines() if "workers run as root" not in line]
        self.assertEqual((done.code, said), (0, []))
        self.assertIn("in order: 2 tenants, no TLS", done.out)
        for text, options, said in (("[tenant.lab]\nmemroy = 3\n", (), "has no setting 'memroy'"),
                                    ("", ("--worker", "/no/such"), "worker is '/no/such'"),
                                    ("", ("--token-file", "/no/such"), "cannot read /no/such"),
                                    ("", ("--tls-certificate", "/dev/null", "--tls-key", "/dev/null"),
                                     "'/dev/null' cannot be used")):
            done = self.check(text, *options)
            self.assertEqual((done.code, done.out), (2, ""))
            self.assertIn(said, done.err)

    def test_a_check_finds_what_a_start_would(self):
        for options, said in ((("--listen", "0.0.0.0:0"), "can be reached from other machines"),
                              (("--listen", "tls://127.0.0.1:0"), "is to speak TLS, which needs tls_certificate"),
                              (("--listen", "no-such-host.invalid:8470"), "there is no address 'no-such-host.invalid'"),
                              (("--listen", "192.0.2.7:8470", "--insecure"), "name an address that this machine has"),
                              (("--listen", "unix:/dev/null"), "is there and no socket"),
                              (("--metrics-listen", "0.0.0.0:0"), "metrics_listen: 0.0.0.0 can be reached")):
            done = self.check("", *options)
            self.assertEqual((done.code, done.out), (2, ""), done.err)
            self.assertIn(said, done.err)
        done = self.check("", driver="/no/such/driver.so")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("/no/such/driver.so", done.err)

    def test_a_check_beside_the_broker_that_it_is_for(self):
        """The broker has the addresses, and its sessions go on; a service would make the folder of a socket."""
        host = self.broker()
        client = self.client(host, "init", "context", f"alloc a {MIB}", "write a 3")
        done = self.check("", "--listen", f"{host.pool},unix:{self.folder()}/none/socket")
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("in order", done.out)
        self.assertIn("warning address in use ", done.err)
        self.assertIn("warning no folder for a socket ", done.err)
        self.assert_lives(client)

    def test_a_check_tells_of_what_ends_soon(self):
        pki, tokens = self.folder(), self.folder() / "tokens"
        self.must("pki", "init", "--folder", pki)
        self.must("pki", "issue", "--folder", pki, "--server", "gpuhost", "--host", "127.0.0.1", "--life", "9d")
        for name, ttl in (("soon", "9d"), ("usual", None)):
            self.must("token", "create", "--file", tokens, "--name", name, "--tenant", "default",
                      *(("--ttl", ttl) if ttl else ()))
        done = self.check("", "--tls-certificate", pki / "gpuhost.crt", "--tls-key", pki / "gpuhost.key",
                          "--token-file", tokens)
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("1 tenant, TLS", done.out)
        self.assertRegex(done.err, r"warning certificate expires .*gpuhost\.crt")
        self.assertRegex(done.err, r"warning token expires .*soon")
        self.assertNotIn("usual", done.err)  # not from its first day


class Monitoring(Operating):
    def setUp(self):
        self.host = self.broker("--metrics-listen", "127.0.0.1:0")
        self.port = int(self.host.log("metrics")["port"])

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
            return answer.read().decode()

    def sample(self, name):
        return [float(line.split()[-1]) for line in self.get("/metrics").splitlines() if line.startswith(name)]

    def test_health(self):
        self.assertEqual(self.get("/healthz"), "ok\n")
        self.must("drain", host=self.host)
        with self.assertRaises(urllib.error.HTTPError) as found:
            self.get("/healthz")
        self.assertEqual(found.exception.code, 503)
        self.assertIn("drained by its administrator", found.exception.read().decode())
        found.exception.close()
        self.assertEqual(self.sample("fargpu_draining"), [1])

    def test_what_sessions_had_stays_when_they_have_ended(self):
        client = self.client(self.host, "init", "context", f"alloc a {MIB}", "write a 3")
        self.assertEqual(self.sample('fargpu_sessions{'), [1])
        self.assertEqual(client.finish(), 0)
        wait_until(lambda: self.sample('fargpu_sessions{') == [0], "the end of the session")
        self.assertEqual(self.sample("fargpu_sessions_started_total"), [1])
        self.assertEqual(sum(self.sample("fargpu_sessions_ended_total")), 1)
        self.assertGreater(self.sample("fargpu_tenant_network_bytes_total")[0], MIB)
        self.assertEqual(self.sample("fargpu_lease_wait_seconds_count"), [1])
        # Its program comes to the lease that `fargpu run` has asked for.
        fargpu("run", "--", paths.PROGRAMS / "lives", "exit-code", pool=self.host.pool)
        self.assertEqual(self.sample("fargpu_lease_wait_seconds_count"), [2])
        self.must("drain", host=self.host)
        self.assertEqual(fargpu("run", "--", "true", pool=self.host.pool).code, 75)
        refused = [line for line in self.get("/metrics").splitlines() if 'reason="draining"' in line]
        self.assertEqual([line.split()[-1] for line in refused], ["1"])

    def test_silent_connections_make_room_and_end(self):
        silent = [socket.create_connection(("127.0.0.1", self.port), timeout=20) for _ in range(100)]
        try:
            self.assertIn("fargpu_build_info", self.get("/metrics"))
            begin = time.monotonic()
            self.assertEqual(silent[0].recv(1), b"")  # the oldest at once
            self.assertLess(time.monotonic() - begin, 2)
            self.assertEqual(silent[-1].recv(1), b"")  # the youngest after its time
            self.assertLess(time.monotonic() - begin, 15)
        finally:
            for connection in silent:
                connection.close()


if __name__ == "__main__":
    unittest.main()
