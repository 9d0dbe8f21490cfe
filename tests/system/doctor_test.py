"""`fargpu doctor`: whatever is wrong, it says what, and how to fix it."""

import json
import os
import socket
import subprocess
import tempfile
import unittest

from rig import SystemTest, fake_broker, fargpu, paths
from rig.broker import settings_file
from rig.wire import VERSION, deaf_host, listener


class Doctor(SystemTest):
    def findings(self, pool, *words, code=1, env=None, warning=""):
        """The report on a pool, in which each of these texts must stand."""
        done = fargpu("doctor", pool=pool, env=env)
        self.assertEqual(done.code, code, done.out + done.err)
        self.assertRegex(done.err, rf"\A{warning}\Z")
        for text in words:
            self.assertIn(text, done.out)
        return done.out

    def test_everything_in_order(self):
        report = self.findings(self.broker().pool, "Fake GPU 0", "Fake GPU 1", "a session with 2 devices",
                               "everything is in order", code=0)
        self.assertNotIn("FAIL", report)

    def test_a_fact_a_line(self):
        report = self.findings(self.broker("--sessions-max", "4").pool, code=0)
        for line in (r"its broker is reached by TCP without TLS", r"tenant 'default' \(nothing is shown to it\)",
                     r"0 of 4 sessions taken",
                     r"device Fake GPU 0, [\d.]+ GiB, of which a new lease may have [\d.]+ GiB",
                     r"a session with 2 devices, ready in \d+ ms",
                     r"its calls go by TCP", r"round trip \d+\.\d\d ms, with a copy of 4 bytes",
                     r"bandwidth [\d.]+ [KMG]iB/s to the device, [\d.]+ [KMG]iB/s back",
                     r"library of the device list \S+/libnvidia-ml\.so\.1"):
            self.assertRegex(report, rf"(?m)^  ok    {line}$")

    def test_who_one_is_and_what_one_may(self):
        """By a token with its end, and by nothing; as lines and as JSON."""
        with tempfile.TemporaryDirectory() as folder, settings_file(
                '[tenant.lab]\nmemory = "64MiB"\ncompute = "150%"\nsessions = 3\ndevices = [0, 1]\n'
                'host_memory = "1GiB"\npriority = "best-effort"\n[tenant.default]\n') as settings:
            tokens = os.path.join(folder, "tokens")
            token, late = (fargpu("token", "create", "--file", tokens, "--name", name, "--tenant", "lab",
                                  "--ttl", ttl).out.strip()
                           for name, ttl in (("anna", "90d"), ("old", "7d")))
            host = self.broker("--token-file", tokens, config=settings)
            self.client(host, "init", "context", "alloc a 1048576",
                        env={"FARGPU_TOKEN": token, "FARGPU_MEM": "16MiB", "FARGPU_COMPUTE": "40%"})
            report = self.findings(host.pool, code=0, env={"FARGPU_TOKEN": token})
            for line in (r"tenant 'lab' \(shown to it: a token\)",
                         r"the host knows this client by the token 'anna', which ends on 20\d\d-\S+Z, "
                         r"(89|90) days left",
                         r"quota of memory: 32 MiB in use, of 64 MiB", r"quota of compute: 80% in use, of 150%",
                         r"quota of sessions: 1 in use, of 3",
                         r"quota of host memory, for each lease: \d+ MiB in use, of 1\.0 GiB",
                         r"devices that the tenant may use: 0, 1", r"priority: at most best-effort",
                         r"device Fake GPU 0, [\d.]+ GiB, of which a new lease may have 32 MiB"):
                self.assertRegex(report, rf"(?m)^  ok    {line}$")
            self.assertRegex(self.findings(host.pool, code=0, env={"FARGPU_TOKEN": late}),
                             r"(?m)^  note  the host knows this client by the token 'old', which ends on \S+, "
                             r"[67] days left: ask ")
            report = self.findings(host.pool, code=0)
            for line in ("tenant 'default' \\(nothing is shown to it\\)",
                         "the host knows this client by nothing: it serves everybody",
                         "quota of memory: 0 MiB in use, no limit", "devices that the tenant may use: all"):
                self.assertRegex(report, rf"(?m)^  ok    {line}$")
            done = fargpu("doctor", "-o", "json", pool=host.pool, env={"FARGPU_TOKEN": token})
            self.assertEqual(done.code, 0, done.out + done.err)
            said = json.loads(done.out)
            there = said["hosts"][0]
            self.assertEqual((said["failures"], there["host"], there["tenant"], there["identity"]["kind"],
                              there["identity"]["name"]),
                             (0, host.pool, "lab", "token", "anna"))
            self.assertRegex(there["identity"]["expires"], r"^20\d\d-")
            self.assertEqual((there["quota"]["sessions_limit"], there["quota"]["devices"],
                              there["quota"]["memory_bytes"]),
                             (3, [0, 1], 32 << 20))
            self.assertIn({"kind": "ok", "text": "address space for device memory"}, said["machine"]["findings"])

    def test_a_host_that_says_less_or_too_much_of_who_one_is(self):
        status = '(status = (tenant = "lab", driverVersion = 13000{}))'
        for more, said in (("", "  note  its fargpud is too old to say by what it knows this client, and until when\n"),
                           (', identity = (kind = token, name = "a\\nb", expiresSeconds = 18446744073709551615)',
                            ", which ends on 9999-12-31T23:59:59Z, 29"),
                           (", identity = (kind = key)",
                            "  note  the tenant's quota is not told within `fargpu run`\n")):
            with fake_broker(hello=f"(helloAnswer = ({VERSION}))", statusRequest=status.format(more)) as pool:
                report = self.findings(pool, "tenant 'lab'", said, "no session: ")
                self.assertNotIn("\nb'", report)

    def test_a_repair_in_json(self):
        done = fargpu("doctor", "-o", "json", pool="127.0.0.1:1")
        finding = json.loads(done.out)["hosts"][0]["findings"][0]
        self.assertEqual((done.code, finding["kind"]), (1, "FAIL"))
        self.assertIn("start fargpud there", finding["repair"])

    def test_each_host_of_a_pool(self):
        """A session leaves reserved addresses behind, which are not the next host's fault."""
        first, second = self.broker(), self.broker()
        for pool in (f"{first.pool},{second.pool}", f"{second.pool},{first.pool}"):
            report = self.findings(pool, "everything is in order", code=0)
            self.assertEqual(report.count("a session with 2 devices"), 2, report)
        report = self.findings(f"{first.pool},{first.pool}",
                               f"  note  {first.pool} in FARGPU_POOL leads to this host too: it is used once\n", code=0)
        self.assertEqual(report.count("a session with 2 devices"), 1, report)
        full = self.broker("--sessions-max", "1")
        self.client(full, "init")
        report = self.findings(f"{full.pool},{second.pool}", "the only session of this host is taken",
                               "1 thing to fix")
        self.assertEqual(report.count("a session with 2 devices"), 1, report)

    def test_less_memory_than_a_copy_is_measured_with(self):
        self.findings(self.broker().pool,
                      "note  no copy is measured: an allocation of 16 MiB gives CUDA_ERROR_OUT_OF_MEMORY", code=0,
                      env={"FARGPU_MEM": "2MiB"},
                      warning="fargpu: warning: .* the lease has 2.0 MiB of its 2.0 MiB left; .*\n")

    def test_a_trace_of_a_program_stays(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("a trace")
            file.flush()
            self.findings(self.broker().pool, "note  no copy is measured: FARGPU_TRACE is set", code=0,
                          env={"FARGPU_TRACE": file.name})
            with open(file.name, encoding="utf-8") as trace:
                self.assertEqual(trace.read(), "a trace")

    def test_no_pool(self):
        self.findings(None, "no pool is named", "for example FARGPU_POOL=gpuhost:8470", "1 thing to fix")

    def test_wrong_port(self):
        with socket.socket() as unused:  # bound, so that nobody else takes it, and deaf
            unused.bind(("127.0.0.1", 0))
            report = self.findings("127.0.0.1:{}".format(unused.getsockname()[1]), "Connection refused",
                                   "nothing listens at this port: start fargpud there")
            self.assertNotIn("tells more", report)  # than the doctor

    def test_numbers_that_are_none(self):
        self.findings(self.broker().pool, "FARGPU_SPIN_US is 'soon'; give microseconds", env={"FARGPU_SPIN_US": "soon"})
        self.findings(self.broker().pool, "FARGPU_COMPRESS is 'very'; use auto, on or off",
                      env={"FARGPU_COMPRESS": "very"})

    def test_variables_that_are_none(self):
        report = self.findings(self.broker().pool,
                               "note  FARGPU_COMPRES is no variable of fargpu; it has no effect; perhaps "
                               "FARGPU_COMPRESS is meant", code=0,
                               env={"FARGPU_COMPRES": "on", "FARGPU_COMPRESS": "on"})
        self.assertNotIn("FARGPU_COMPRESS is no", report)

    def test_run_warns_of_variables_that_are_none(self):
        pool = self.broker().pool
        done = fargpu("run", "--", "echo", "ran", pool=pool,
                      env={"FARGPU_TRANPORT": "tcp", "FARGPU_ZEBRA": "1", "FARGPU_SOFTGPU_THREADS": "1"})
        self.assertEqual((done.code, done.out), (0, "ran\n"))
        self.assertEqual(sorted(done.err.splitlines()), [
            "fargpu: warning: FARGPU_TRANPORT is no variable of fargpu; it has no effect; perhaps "
            "FARGPU_TRANSPORT is meant",
            "fargpu: warning: FARGPU_ZEBRA is no variable of fargpu; it has no effect"])
        self.assertEqual(fargpu("run", "--", "true", pool=pool, env={"FARGPU_TRANSPORT": "auto"}).err, "")

    def test_a_program_warns_of_variables_that_are_none(self):
        """Once a process, and not again within a job, which `fargpu run` has warned."""
        pool = self.broker().pool
        client = self.client(pool, "init", "context", env={"FARGPU_TRANPORT": "tcp"})
        line = ("fargpu: warning: FARGPU_TRANPORT is no variable of fargpu; it has no effect; "
                "perhaps FARGPU_TRANSPORT is meant")
        client.says(line)
        self.assertEqual(client.process.err.text().count("FARGPU_TRANPORT"), 1)
        done = fargpu("run", "--", paths.PROGRAMS / "lives", "exit-code", pool=pool, env={"FARGPU_TRANPORT": "tcp"})
        self.assertEqual(done.err.count("FARGPU_TRANPORT"), 1, done.err)

    def test_a_word_of_the_log_that_is_none(self):
        """Told once by `fargpu run`, for the programs of the job too, and by doctor."""
        line = "FARGPU_LOG knows no 'inffo'; perhaps 'info' is meant; use error, warn, info, debug, stats, trace"
        host = self.broker()
        program = ("run", "--", paths.PROGRAMS / "lives", "exit-code")
        done = fargpu(*program, pool=host.pool, env={"FARGPU_LOG": "inffo,stats"})
        self.assertEqual(done.err.count("FARGPU_LOG"), 1, done.err)
        self.assertIn(f"fargpu: warning: {line}\n", done.err)
        self.assertIn("round trips", done.err)
        self.assertIn(f"note  {line}\n", self.findings(host.pool, code=0, env={"FARGPU_LOG": "inffo"},
                                                      warning=f"fargpu: warning: {line}\n"))

    def test_files_that_cannot_be_written(self):
        for name in ("FARGPU_LOG_FILE", "FARGPU_TRACE"):
            for path, why in (("/nowhere/file", "No such file or directory"), ("/tmp", "Is a directory")):
                done = fargpu("doctor", pool=self.broker().pool, env={name: path})
                self.assertEqual(done.code, 1)
                self.assertIn(f"{name} '{path}' cannot be written: {why}", done.out)

    def test_words_that_are_none(self):
        for arguments, words in ((("ls", "--long"),
                                  "fargpu: `fargpu ls` has no option '--long'; see `fargpu ls --help`"),
                                 (("run", "--men", "8GiB", "--", "true"),
                                  "fargpu: `fargpu run` has no option '--men'; perhaps '--mem' is meant; see `fargpu "
                                  "run --help`"),
                                 (("run", "--wiat=5s", "--", "true"), "; perhaps '--wait' is meant; see"),
                                 (("run", "--memory", "8GiB", "--", "true"), "; perhaps '--mem' is meant; see"),
                                 (("run", "--gpu", "1", "true"), "; perhaps '--gpus' is meant; see"),
                                 (("ls", "--outptu", "json"), "; perhaps '--output' is meant; see"),
                                 (("--poll", "h", "ls"), "; perhaps '--pool' is meant; see"),
                                 (("token", "create", "--tll", "1d"), "; perhaps '--ttl' is meant; see"),
                                 (("policy", "shiw"),
                                  "`fargpu policy` has no command 'shiw'; perhaps 'show' is meant; see"),
                                 (("docter",), "there is no command 'docter'"),
                                 (("docter",), "; perhaps 'doctor' is meant;"),
                                 (("policy",), "see `fargpu policy --help`"),
                                 (("policy", "set"), "see `fargpu policy set --help`"),
                                 (("quota", "1"), "--percent or --weight"),
                                 (("run", "-n", "two", "--", "true"), "--gpus is 'two'; give a number of GPUs"),
                                 (("run", "--mem", "8", "--", "true"),
                                  "--mem is '8'; give an amount of memory with its unit")):
            done = fargpu(*arguments, pool="127.0.0.1:1")
            self.assertEqual((done.code, done.out), (125, ""), arguments)
            self.assertIn(words, done.err)
            self.assertEqual(done.err.count("\n"), 1, done.err)
        self.assertIn("FARGPU_GPUS is 'two'", fargpu("run", "--", "true", pool="127.0.0.1:1",
                                                     env={"FARGPU_GPUS": "two"}).err)

    def test_a_full_disk(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([paths.FARGPU, "token", "list", "--file", os.devnull], stdout=full,
                                  stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 125)
        self.assertIn("cannot be written", done.stderr)

    def test_commands_that_are_none(self):
        done = fargpu("nvidia-smi")
        self.assertEqual(done.code, 125)
        self.assertIn("there is no command 'nvidia-smi'; commands are run ls top policy quota pool end evict drain "
                      "resume cache smi doctor variables token pki", done.err)
        self.assertIn("--pool is '::'", fargpu("ls", "--pool", "::").err)
        for command, said in ((("token", "remove"),
                               "`fargpu token` has no command 'remove'; perhaps 'revoke' is meant"),
                              (("--bogus",), "`fargpu` has no option '--bogus'"),
                              (("run", "--bogus", "--", "true"), "`fargpu run` has no option '--bogus'"),
                              (("policy",), "A subcommand is required")):
            done = fargpu(*command)
            self.assertEqual(done.code, 125)
            self.assertIn(f"fargpu: {said}; see `", done.err)

    def test_name_without_address(self):
        self.findings("no-such-host.invalid", "no address for host 'no-such-host.invalid'", "correct FARGPU_POOL")

    def test_silence(self):
        """A host that lets nobody in, and a service that says nothing: both at once, because both take as long as one
        waits."""
        with deaf_host() as deaf, listener(lambda connection: connection.recv(1 << 16)
                                           and connection.recv(1)) as silent:
            doctors = [(self.start([paths.FARGPU, "doctor", "--pool", pool]), words)
                       for pool, words in ((deaf, "timed out"),
                                           (silent, "does not answer during the handshake; is it fargpud?"))]
            for doctor, words in doctors:
                self.assertEqual(doctor.wait(), 1)
                self.assertIn(words, doctor.out.text())
                self.assertIn("open the port in its firewall, or correct FARGPU_POOL", doctor.out.text())

    def test_other_services(self):
        answers = {
            "http": b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nbad request\r\n",
            "ssh": b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\nProtocol mismatch.\n",
            "tls": bytes((21, 3, 3, 0, 2, 2, 70)),
            "zeros": bytes(4096),
            "noise": bytes((i * 167 + 13) % 256 for i in range(4096)),
        }
        causes = {"http": "is no fargpud (it is a web server: it answers by HTTP); is the port right?",
                  "ssh": "is no fargpud (it is an SSH server)",
                  "tls": "is no fargpud (it speaks TLS, which tls:// in front of the host asks for)"}
        for name, answer in answers.items():
            def serve(connection, answer=answer):
                connection.recv(1 << 16)
                connection.sendall(answer)

            with self.subTest(service=name), listener(serve) as pool:
                report = self.findings(pool, causes.get(name, "fargpud"), "correct FARGPU_POOL")
                for finding in report.split("  FAIL  ")[1:]:
                    self.assertEqual(len(finding.split("\n        ")), 2, report)
        with self.subTest(service="hangs up"), listener(lambda connection: connection.recv(1 << 16)) as pool:
            self.findings(pool, "closed the connection during the handshake; is it fargpud?")

    def test_another_version_of_the_protocol(self):
        failure = ('(reason = versionMismatch, text = "this host speaks protocol 2, the client 1; install the same '
                   'fargpu on both")')
        with fake_broker(hello=f"(helloAnswer = (protocolVersion = 999, failure = {failure}))") as pool:
            number = VERSION.split(" = ")[1]
            self.findings(pool, f"the client has an older fargpu (protocol {number}) than {pool} (protocol 999); "
                                "update fargpu on the client's machine",
                          "install the same version of fargpu on both machines")

    def test_shut_out(self):
        failure = '(reason = noCapacity, text = "this host has shut out your address for up to a minute")'
        with fake_broker(hello=f"(helloAnswer = ({VERSION}, failure = {failure}))") as pool:
            report = self.findings(pool, "has shut out your address", "try again later")
            self.assertNotIn("firewall", report)

    def test_not_let_in(self):
        with settings_file("[tenant.lab]\n") as file:
            report = self.findings(self.broker(config=file).pool, "clients with credentials",
                                   "ask the operator of that host")
            self.assertNotIn("firewall", report)

    def test_older_driver(self):
        host = self.broker(env={"FARGPU_FAKE_VERSION": 12080})
        self.findings(host.pool, "its driver is of CUDA level 12080, this client of 13000",
                      "set FARGPU_DRIVER_VERSION=12080")
        self.findings(host.pool, "everything is in order", code=0, env={"FARGPU_DRIVER_VERSION": 12080})

    def test_no_devices_visible(self):
        self.findings(self.broker().pool, "CUDA_VISIBLE_DEVICES names none of this host's devices",
                      env={"CUDA_VISIBLE_DEVICES": "7"})

    def test_full_host(self):
        host = self.broker("--sessions-max", "1")
        self.client(host, "init")
        self.findings(host.pool, "no session: ", "the only session of this host is taken; try later")

    def test_limited_address_space(self):
        if paths.SANITIZED:
            self.skipTest("the sanitizer needs all addresses")
        host = self.broker()
        doctor = self.start(["sh", "-c", f"ulimit -v 8388608; exec {paths.FARGPU} doctor --pool {host.pool}"])
        self.assertEqual(doctor.wait(), 1)
        self.assertIn("the address space is limited to 8 GiB", doctor.out.text())
        self.assertIn("ulimit -v unlimited", doctor.out.text())


if __name__ == "__main__":
    unittest.main()
