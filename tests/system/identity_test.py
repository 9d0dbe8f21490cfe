"""The right to use a host: TLS, certificates, keys and tokens, tenants, and what refused clients are told."""

import os
import re
import signal
import ssl
import tempfile
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_until
from rig.wire import VERSION, control, data_of, frame, listener

MIB = 1 << 20
TENANTS = '[tenant.lab]\nmemory = "64MiB"\n[tenant.other]\n'


class Identity(SystemTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.pki = self.folder / "pki"
        self.tokens = self.folder / "tokens"
        self.settings = self.folder / "fargpud.toml"
        self.settings.write_text(TENANTS)
        self.must("pki", "init", "--folder", self.pki)
        self.must("pki", "issue", "--folder", self.pki, "--server", "gpuhost", "--host", "127.0.0.1", "--host",
                  "localhost")

    def must(self, *arguments):
        done = fargpu(*arguments)
        self.assertEqual(done.code, 0, done.err)
        return done.out

    def token(self, name, tenant="lab", ttl="1h"):
        return self.must("token", "create", "--file", self.tokens, "--name", name, "--tenant", tenant, "--ttl",
                         ttl).strip()

    def host(self, *options, listen="tls://127.0.0.1:0", server="gpuhost"):
        if not self.tokens.exists():
            self.token("first")
        host = self.broker("--tls-certificate", self.pki / f"{server}.crt", "--tls-key", self.pki / f"{server}.key",
                           "--tls-client-ca",
                           self.pki / "ca.crt", "--token-file", self.tokens, *options, listen=listen,
                           config=self.settings)
        if listen.startswith("tls://"):
            host.pool = "tls://" + host.pool
        return host

    def trusting(self, **more):
        return {"FARGPU_CA": self.pki / "ca.crt", **{f"FARGPU_{k.upper()}": v for k, v in more.items()}}

    def assert_refused(self, host, environment, *words, code="NOT_PERMITTED", exit_code=126):
        client = self.client(host, env=environment)
        self.assertEqual(client.ask("init"), code)
        for word in words:
            client.says(word)
        self.assertEqual(fargpu("run", "--", "true", pool=host if isinstance(host, str) else host.pool,
                                env=environment).code, exit_code)

    def assert_works(self, host, environment, tenant):
        client = self.client(host, "init", "context", "alloc a 100000", "write a 7", env=environment)
        self.assert_lives(client)
        self.assertEqual(host.log("session started", pid=client.pid)["tenant"], tenant)
        return client

    # --- clients that may
    # --------------------------------------------------------------------------------------------------------

    def test_the_end_of_a_certificate_is_told(self):
        self.must("pki", "issue", "--folder", self.pki, "--tenant", "lab", "--life", "20d")
        done = fargpu("doctor", pool=self.host().pool,
                      env=self.trusting(cert=self.pki / "lab.crt", key=self.pki / "lab.key"))
        self.assertRegex(done.out, r"(?m)^  note  the host knows this client by the certificate 'lab', which ends on "
                                   r"\S+, (19|20) days left: ask ")

    def test_a_token(self):
        host = self.host()
        token = self.token("laptop")
        client = self.assert_works(host, self.trusting(token=token), "lab")
        self.assertEqual(client.ask("total_bytes 0"), f"SUCCESS {64 * MIB}")
        file = self.folder / "my token"
        file.write_text(token + "\n")
        self.assert_works(host, self.trusting(token_file=file), "lab")
        done = fargpu("run", "--", paths.PROGRAMS / "lives", "--help", pool=host.pool,
                      env=self.trusting(token_file=file))
        self.assertNotEqual(done.code, 126, done.err)

    def test_large_transfers(self):
        host = self.host()
        client = self.client(host, "init", "context", f"alloc a {48 * MIB}", "write a 9",
                             env=self.trusting(token=self.token("t")))
        self.assert_lives(client)

    def test_large_copies_by_lanes(self):
        """Further connections, each with a handshake of its own."""
        def connections(pid):
            return sum(os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
                       for number in os.listdir(f"/proc/{pid}/fd"))

        host = self.host()
        environment = self.trusting(token=self.token("t"))
        alone = self.client(host, "init", "context", f"alloc a {24 * MIB}", "write a 9",
                            env={**environment, "FARGPU_LANES": "0"})
        many = self.client(host, "init", "context", f"alloc a {24 * MIB}", "write a 9",
                           env={**environment, "FARGPU_LANES": "4"})
        for client in (alone, many):
            self.assert_lives(client)
        self.assertEqual(connections(many.pid), connections(alone.pid) + 4)
        self.assertNotIn("by one connection", many.errors())

    def test_who_does_not_know_a_lane_s_key_has_no_lane(self):
        host = self.host()
        client = self.client(host, "init", "context", f"alloc a {8 * MIB}", "write a 9",
                             env={**self.trusting(token=self.token("t")), "FARGPU_LANES": "4"})
        session = host.log("session started", pid=client.pid)["session"]
        for first, rest in ((f'(lane = (sessionId = {session}, key = 0x"{"00" * 16}"))', b""),
                            (f'(lane = (sessionId = {session}, key = 0x"{"00" * 48}"))', os.urandom(400)),
                            (f'(lane = (sessionId = {session}))', bytes.fromhex("16030100c8")),
                            (f'(lane = (sessionId = {session}7))', os.urandom(400))):
            stranger = self.connection(host)
            stranger.say(first)
            stranger.send(rest)
            self.assertTrue(stranger.is_closed(), first)
        self.assertEqual(client.ask("write a 4"), "SUCCESS")
        self.assert_lives(client)

    def test_a_certificate(self):
        host = self.host()
        self.must("pki", "issue", "--folder", self.pki, "--tenant", "other")
        self.assert_works(host, self.trusting(cert=self.pki / "other.crt", key=self.pki / "other.key"), "other")

    def test_a_fingerprint_instead_of_an_authority(self):
        out = self.must("pki", "issue", "--folder", self.pki, "--server", "second", "--host", "elsewhere")
        fingerprint = next(line.split()[0] for line in out.splitlines() if "FARGPU_FINGERPRINT" in line)
        host = self.host(server="second")
        token = self.token("t")
        self.assert_works(host, {"FARGPU_FINGERPRINT": fingerprint, "FARGPU_TOKEN": token}, "lab")
        self.assert_refused(host, {"FARGPU_FINGERPRINT": "00" * 32, "FARGPU_TOKEN": token}, "not trusted")

    def test_a_key_without_any_certificate(self):
        keys, mine, wrong = self.folder / "keys", self.folder / "mine", self.folder / "wrong"
        keys.write_text("lab:" + "5a" * 32 + "\n")
        mine.write_text("lab:" + "5a" * 32 + "\n")
        wrong.write_text("lab:" + "5b" * 32 + "\n")
        host = self.broker("--psk-file", keys, listen="tls://127.0.0.1:0", config=self.settings)
        host.pool = "tls://" + host.pool
        self.assert_works(host, {"FARGPU_PSK_FILE": mine}, "lab")
        self.assert_refused(host, {"FARGPU_PSK_FILE": wrong}, "does not accept the shared key 'lab'")
        host.log("connection refused", reason="TLS: the shared key is another one than the one of this name here")
        wrong.write_text("other:" + "5a" * 32 + "\n")
        self.assert_refused(host, {"FARGPU_PSK_FILE": wrong}, "does not accept the shared key 'other'")

    def test_tenants_do_not_see_each_other(self):
        host = self.host()
        mine, theirs = self.token("mine"), self.token("theirs", "other")
        self.assert_works(host, self.trusting(token=mine), "lab")
        mine_seen = fargpu("ls", "-o", "json", pool=host.pool, env=self.trusting(token=mine)).out
        theirs_seen = fargpu("ls", "-o", "json", pool=host.pool, env=self.trusting(token=theirs)).out
        self.assertIn("commanded", mine_seen)
        self.assertNotIn("commanded", theirs_seen)

    def test_a_token_on_this_machine_needs_no_tls(self):
        host = self.host(listen="127.0.0.1:0")
        self.assert_works(host, {"FARGPU_TOKEN": self.token("local")}, "lab")
        self.assert_refused(host, {}, "only clients with credentials")

    # --- clients that may not ----------------------------------------------------------------------------------------

    def test_tokens_that_are_none(self):
        host = self.host()
        self.assert_refused(host, self.trusting(token="fargpu_" + "0" * 64), "not known here, or was revoked")
        self.assert_refused(host, self.trusting(token="# no token"), "what is shown as a token is none")
        self.assert_refused(host, self.trusting(), "asks for credentials")

    def test_an_expired_token(self):
        host = self.host()
        token = self.token("short", ttl="1s")
        wait_until(lambda: "(over)" in self.must("token", "list", "--file", self.tokens), "its end")
        self.assert_refused(host, self.trusting(token=token), "'short' has expired")

    def test_a_revoked_token(self):
        host = self.host()
        token = self.token("lost")
        running = self.assert_works(host, self.trusting(token=token), "lab")
        self.must("token", "revoke", "--file", self.tokens, "lost")
        self.assert_refused(host, self.trusting(token=token), "was revoked")
        self.assert_lives(running)

    def test_a_token_of_no_tenant(self):
        host = self.host()
        self.assert_refused(host, self.trusting(token=self.token("ghost", "ghost")), "'ghost', which is no tenant")

    def test_a_host_of_another_authority(self):
        other = self.folder / "other"
        self.must("pki", "init", "--folder", other)
        host = self.host()
        environment = {"FARGPU_CA": other / "ca.crt", "FARGPU_TOKEN": self.token("t")}
        self.assert_refused(host, environment, "not trusted", f"FARGPU_CA names '{other}/ca.crt'")
        # The cause is known: nothing is guessed at.
        self.assertNotIn("shut out", fargpu("run", "--", "true", pool=host.pool, env=environment).err)

    def test_a_host_by_a_name_that_is_not_its(self):
        self.must("pki", "issue", "--folder", self.pki, "--server", "third", "--host", "elsewhere")
        host = self.host(server="third")
        self.assert_refused(host, self.trusting(token=self.token("t")), "its certificate is for other names")

    def test_a_client_of_another_authority(self):
        other = self.folder / "other"
        self.must("pki", "init", "--folder", other)
        self.must("pki", "issue", "--folder", other, "--tenant", "lab")
        host = self.host()
        self.assert_refused(host, self.trusting(cert=other / "lab.crt", key=other / "lab.key"),
                            f"does not accept the certificate of FARGPU_CERT '{other}/lab.crt' (tlsv1 alert unknown "
                            "ca)")
        host.log("connection refused")

    def test_nothing_by_which_to_know_the_host(self):
        self.assert_refused(self.host(), {"FARGPU_TOKEN": self.token("t")}, "set FARGPU_CA", exit_code=125)

    def test_files_that_are_not_there(self):
        host = self.host()
        self.assert_refused(host, self.trusting(token_file=self.folder / "none"), "FARGPU_TOKEN_FILE names",
                            exit_code=125)
        self.assert_refused(host, {"FARGPU_CA": self.folder / "none"}, "FARGPU_CA names", exit_code=125)
        self.assert_refused(host, {"FARGPU_FINGERPRINT": "beef"}, "FARGPU_FINGERPRINT is 'beef'", exit_code=125)
        self.assertIn("`fargpu pki init` makes an authority",
                      fargpu("pki", "issue", "--folder", self.folder / "none", "--tenant", "lab").err)
        self.assertEqual(fargpu("token", "list", "--file", self.folder / "none").out, "")
        self.assert_refused(host, self.trusting(cert=self.pki / "ca.crt"), "belong together", exit_code=125)

    def test_a_client_without_tls_where_it_is_spoken(self):
        host = self.host()
        self.assert_refused(host.pool.removeprefix("tls://"), {}, "this port speaks TLS; write FARGPU_POOL=tls://")
        self.assertIn(f"write {host.pool} in FARGPU_POOL: an address of this machine has no TLS without that",
                      fargpu("doctor", pool=host.pool.removeprefix("tls://"), env=self.trusting()).out)

    def test_a_client_with_tls_where_none_is_spoken(self):
        host = self.host(listen="127.0.0.1:0")
        env = self.trusting(token=self.token("t"))
        self.assert_refused("tls://" + host.pool, env, "no TLS", "write tcp://")
        self.assertIn(f"if its fargpud serves without TLS, write tcp://{host.pool}",
                      fargpu("doctor", pool="tls://" + host.pool, env=env).out)

    def test_other_services_where_tls_is_expected(self):
        """Each cause has a line of its own, and a repair that fits it."""
        def web(connection):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        for serve, cause, repair in (
                (web, "no TLS: what it sends is not TLS", "if its fargpud serves without TLS, write tcp://127.0.0.1:"),
                (lambda connection: connection.recv(1 << 16), "no TLS: it closed the connection",
                 "if its fargpud serves without TLS"),
                (lambda connection: connection.recv(1 << 16) and connection.recv(1),
                 "does not answer during the handshake; is it fargpud?",
                 "open the port in its firewall")):
            with self.subTest(cause=cause), listener(serve) as pool:
                report = fargpu("doctor", pool="tls://" + pool, env=self.trusting()).out
                self.assertRegex(report, rf"(?m)^  FAIL  [^;]*{re.escape(cause)}\n        .*{re.escape(repair)}")

    def test_the_doctor_tells_by_what_each_knows_the_other(self):
        host = self.host()
        report = fargpu("doctor", pool=host.pool, env=self.trusting(token=self.token("t"))).out
        self.assertIn("  ok    its broker is reached by TCP with TLS 1.3; the host is known by the authority in "
                      f"{self.pki / 'ca.crt'}\n", report)
        self.assertIn("  ok    tenant 'lab' (shown to it: a token)\n", report)
        report = fargpu("doctor", pool=host.pool, env={}).out
        self.assertRegex(report, r"(?m)^  FAIL  \S+ is to be spoken to by TLS, but nothing says how to know it\n       "
                                 r" set FARGPU_CA to the certificate")

    # --- strangers ---------------------------------------------------------------------------------------------------

    def test_strangers_where_tls_is_spoken(self):
        host = self.host("--handshake-seconds", "2")
        half = self.connection(host)
        half.send(bytes.fromhex("16030100c8"))
        for data in (os.urandom(500), b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex("16030100c801") + os.urandom(300),
                     frame(control(f'(attach = (ticket = "", {VERSION}))')),
                     frame(control('(route = (ticketName = 0x"00112233445566778899aabbccddeeff"))')),
                     frame(control('(route = (ticketName = ""))')), frame(control("(leaseRequest = ())")), b""):
            stranger = self.connection(host)
            stranger.send(data)
            self.assertTrue(stranger.is_closed())
        self.assertTrue(half.is_closed())
        self.assert_works(host, self.trusting(token=self.token("t")), "lab")

    def test_who_saw_a_session_s_name_has_no_session(self):
        """What goes in the clear names the ticket; without the ticket itself the worker's handshake does not end."""
        host = self.host()
        trust = ssl.create_default_context(cafile=self.pki / "ca.crt")
        control_connection = self.connection(host)
        control_connection.socket = trust.wrap_socket(control_connection.socket, server_hostname="127.0.0.1")
        control_connection.say(f'(hello = ({VERSION}, token = "{self.token("t")}"))')
        self.assertIn('tenant = "lab"', control_connection.hear())
        control_connection.say("(leaseRequest = ())")
        answer = control_connection.hear()
        ticket, name = (data_of(field, answer) for field in ("ticket", "ticketName"))
        # The ticket is worth nothing without TLS.
        plain = self.connection(host)
        plain.say(f'(attach = (ticket = 0x"{ticket}", {VERSION}))')
        self.assertTrue(plain.is_closed())
        stranger = self.connection(host)
        stranger.say(f'(route = (ticketName = 0x"{name}"))')
        stranger.send(os.urandom(400))
        self.assertTrue(stranger.is_closed())
        self.assertIn("no session", host.log("session ended")["reason"])
        again = self.connection(host)
        again.say(f'(route = (ticketName = 0x"{name}"))')
        self.assertTrue(again.is_closed())
        host.log("connection refused", reason="wrong, used or expired ticket")

    # --- the host's own ----------------------------------------------------------------------------------------------

    def test_off_the_loopback_tls_is_what_there_is(self):
        done = self.start([paths.FARGPUD, "--driver", paths.FAKE_DRIVER, "--listen", "0.0.0.0:0", "--config",
                           os.devnull])
        self.assertEqual(done.wait(), 2)
        self.assertIn("`fargpu pki` makes them", done.err.text())
        done = self.start([paths.FARGPUD, "--driver", paths.FAKE_DRIVER, "--listen", "tcp://0.0.0.0:0", "--config",
                           os.devnull])
        self.assertEqual(done.wait(), 2)
        self.assertIn("--insecure", done.err.text())

    def test_reading_again(self):
        host = self.host()
        environment = self.trusting(token=self.token("t"))
        running = self.assert_works(host, environment, "lab")
        fresh = self.trusting(token=self.token("n", "fresh"))
        self.assert_refused(host, fresh, "'fresh', which is no tenant")
        self.settings.write_text(TENANTS + "[tenant.fresh]\n")
        host.process.signal(signal.SIGHUP)
        host.log("reloaded")
        self.assert_works(host, fresh, "fresh")
        self.assert_lives(running)
        # What cannot be read changes nothing.
        self.settings.write_text('[tenant.lab]\nmemory = "lots"\n')
        host.process.signal(signal.SIGHUP)
        self.assertIn("memory of tenant 'lab'", host.log("not reloaded")["reason"])
        self.assert_works(host, fresh, "fresh")

    def test_new_certificates(self):
        host = self.host()
        token = self.token("t")
        running = self.assert_works(host, self.trusting(token=token), "lab")
        other = self.folder / "other"
        self.must("pki", "init", "--folder", other)
        self.must("pki", "issue", "--folder", other, "--server", "gpuhost", "--host", "127.0.0.1")
        for name in ("gpuhost.crt", "gpuhost.key"):
            (other / name).replace(self.pki / name)
        host.process.signal(signal.SIGHUP)
        host.log("reloaded")
        self.assert_works(host, {"FARGPU_CA": other / "ca.crt", "FARGPU_TOKEN": token}, "lab")
        self.assert_lives(running)

    def test_a_renewed_certificate(self):
        host = self.host()
        token = self.token("t")
        before = [(self.pki / name).read_bytes() for name in ("gpuhost.crt", "gpuhost.key")]
        done = fargpu("pki", "issue", "--folder", self.pki, "--server", "gpuhost", "--host", "127.0.0.1")
        self.assertEqual(done.code, 125)
        self.assertIn("`fargpu pki renew`", done.err)
        self.assertIn("is good until", self.must("pki", "renew", "--folder", self.pki, "gpuhost", "--life", "10d"))
        after = [(self.pki / name).read_bytes() for name in ("gpuhost.crt", "gpuhost.key")]
        self.assertNotEqual(before[0], after[0])
        self.assertEqual(before[1], after[1])
        host.process.signal(signal.SIGHUP)
        host.log("reloaded")
        host.log("certificate expires")  # in ten days
        self.assert_works(host, self.trusting(token=token), "lab")
        done = fargpu("pki", "renew", "--folder", self.pki, "nobody")
        self.assertEqual(done.code, 125)
        self.assertIn("there is no", done.err)
        self.assertEqual(sorted(path.name for path in self.pki.iterdir()),
                         ["ca.crt", "ca.key", "gpuhost.crt", "gpuhost.key"])

    def test_an_authority_that_ends_first(self):
        brief = self.folder / "brief"
        self.must("pki", "init", "--folder", brief, "--life", "5d")
        done = fargpu("pki", "issue", "--folder", brief, "--server", "gpuhost", "--host", "127.0.0.1")
        self.assertEqual(done.code, 0)
        self.assertIn("the authority ends first", done.err)

    def test_tenants_that_nobody_can_be(self):
        certificate = ("--tls-certificate", self.pki / "gpuhost.crt", "--tls-key", self.pki / "gpuhost.key")
        host = self.broker(*certificate, listen="tls://127.0.0.1:0", config=self.settings)
        host.pool = "tls://" + host.pool
        self.assertIn("no client can say", host.log("no way in")["meaning"])
        self.assert_refused(host, self.trusting(token="fargpu_" + "0" * 64), "this host takes no tokens")
        self.assert_refused(host, self.trusting(), "its settings name none that it takes")


if __name__ == "__main__":
    unittest.main()
