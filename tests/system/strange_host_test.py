"""Hosts that are not there, are something else, or mean harm: cuInit fails with the right error and one line that says
what to fix."""

import socket
import time
import unittest

from rig import SystemTest, fake_broker, fargpu
from rig.wire import VERSION, deaf_host, listener

WELCOME = f"(helloAnswer = ({VERSION}))"
TICKET = '(leaseAnswer = (ticket = "abc"))'
# What programs with any sanitizer can offer, and those without.
TERMS = (f"{VERSION}, creditBytes = 33554432, deviceWindow = (base = 0x550000000000, bytes = 0x1000000000), hostWindow "
         "= (base = 0x7e8040000000, bytes = 0x1000000000)")


class StrangeHosts(SystemTest):
    def refused(self, pool, result, *words):
        client = self.client(pool)
        self.assertEqual(client.ask("init"), result)
        self.assertEqual(client.ask("init"), result)  # and stays so
        self.assertEqual(client.ask("count"), "NOT_INITIALIZED -1")
        self.assertEqual(client.finish(), 0)
        lines = client.errors().splitlines()
        self.assertEqual(len(lines), 1, lines)
        for text in ("fargpu: error: ", *words):
            self.assertIn(text, lines[0])
        self.assertTrue(lines[0].isprintable(), lines[0])

    # --- nobody there ------------------------------------------------------------------------------------------------

    def test_nobody_listens(self):
        with socket.socket() as unused:  # bound, so that nobody else takes it, and deaf
            unused.bind(("127.0.0.1", 0))
            pool = "127.0.0.1:{}".format(unused.getsockname()[1])
            self.refused(pool, "SYSTEM_NOT_READY", f"cannot connect to {pool} (Connection refused)",
                         "is fargpud running there")

    def test_no_such_name(self):
        self.refused("no-such-host.invalid", "SYSTEM_NOT_READY", "no address for host 'no-such-host.invalid'",
                     "check FARGPU_POOL")

    def test_no_pool(self):
        self.refused("", "NO_DEVICE", "FARGPU_POOL is not set; name the GPU host")
        self.refused("none", "NO_DEVICE", "FARGPU_POOL=none")
        self.refused("host:99999", "NO_DEVICE", "'99999' is no port", "write host[:port]")

    def test_the_next_host_serves(self):
        host = self.broker()
        full = self.broker("--sessions-max", "1")
        self.client(full, "init")
        client = self.client(f"127.0.0.1:1,{full.pool},no-such-host.invalid,{host.pool}", "init", "context",
                             "alloc a 4096", "write a 1")
        self.assert_lives(client)
        self.assertEqual(client.errors(), "")

    def test_a_silent_host_is_not_waited_for_while_another_answers(self):
        host, other = self.broker(), self.broker()
        with deaf_host() as deaf, listener(lambda connection: connection.recv(1 << 16) and connection.recv(1)) as mute:
            begin = time.monotonic()
            client = self.client(f"{deaf},{mute},{host.pool},{other.pool}", "init", "context", "alloc a 4096",
                                 "write a 1")
            done = fargpu("run", "--", "sh", "-c", "echo $FARGPU_POOL", pool=f"{mute},{host.pool}")
            took = time.monotonic() - begin
        self.assert_lives(client)
        self.assertEqual(client.errors(), "")
        self.assertEqual((done.code, done.out), (0, host.pool + "\n"))
        self.assertLess(took, 4.5)  # each of the silent ones alone takes five seconds to be given up
        self.assertEqual(other.logged("session started"), [])

    def test_the_first_host_serves_that_answers(self):
        first, second = self.broker(), self.broker()
        for _ in range(5):
            self.client(f"{first.pool},{second.pool}", "init")
        self.assertEqual((len(first.sessions()), len(second.sessions())), (5, 0))

    def test_a_silent_host_is_told_of_when_no_other_serves(self):
        full = self.broker("--sessions-max", "1")
        self.client(full, "init")
        with deaf_host() as deaf:
            self.refused(f"{deaf},{full.pool}", "SYSTEM_NOT_READY",
                         f"(1) cannot connect to {deaf} (Connection timed out)",
                         "(2) " + full.pool + ": the only session of this host is taken")

    def test_of_several_each_is_named(self):
        full = self.broker("--sessions-max", "1")
        self.client(full, "init")
        self.refused(f"127.0.0.1:1,no-such-host.invalid,{full.pool}", "SYSTEM_NOT_READY",
                     "none of the 3 hosts in FARGPU_POOL can be used: (1) cannot connect to 127.0.0.1:1 (Connection "
                     "refused)",
                     "; (2) no address for host 'no-such-host.invalid'",
                     f"; (3) {full.pool}: the only session of this host is taken",
                     "`fargpu doctor` tells more")

    def test_the_reason_that_waiting_mends_comes_first(self):
        full = self.broker("--sessions-max", "1")
        self.client(full, "init")
        with fake_broker(hello='(helloAnswer = (failure = (reason = denied, text = "no such tenant")))') as denying:
            for pool, code, words in ((f"127.0.0.1:1,{full.pool},{denying}", 75,
                                       "the only session of this host is taken; try later"),
                                      (f"{full.pool},127.0.0.1:1", 75,
                                       "the only session of this host is taken; try later"),
                                      (f"127.0.0.1:1,{denying}", 125, "no such tenant"),
                                      ("127.0.0.1:1,127.0.0.1:2", 125, "127.0.0.1:1")):
                done = fargpu("run", "--", "true", pool=pool)
                self.assertEqual(done.code, code, done.err)
                self.assertIn(words, done.err)
                self.assertEqual(done.err.count("\n"), 1)

    # --- somebody else -----------------------------------------------------------------------------------------------

    def test_another_service(self):
        for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x32" + bytes(60), b"\xff" * 4096,
                       bytes(4096)):
            def serve(connection, answer=answer):
                connection.recv(1 << 16)
                connection.sendall(answer)

            with listener(serve) as pool:
                self.refused(pool, "SYSTEM_NOT_READY", pool)

    def test_one_that_hangs_up(self):
        with listener(lambda connection: None) as pool:
            self.refused(pool, "SYSTEM_NOT_READY", "during the handshake; is it fargpud?")
        for answers in ({"hello": WELCOME}, {"hello": WELCOME, "leaseRequest": TICKET}):
            with fake_broker(**answers) as pool:
                self.refused(pool, "SYSTEM_NOT_READY", pool, "closed the connection")

    def test_another_version(self):
        failure = 'failure = (reason = versionMismatch, text = "install the same")'
        with fake_broker(hello=f"(helloAnswer = ({VERSION}, {failure}))") as pool:
            self.refused(pool, "SYSTEM_DRIVER_MISMATCH", "install the same")
        with fake_broker(hello=f'(helloAnswer = (protocolVersion = 1, version = "0.1.0", {failure}))') as pool:
            self.refused(pool, "SYSTEM_DRIVER_MISMATCH",
                         f"{pool} has an older fargpu (0.1.0, protocol 1) than the client",
                         "update fargpu on the GPU host")
        with fake_broker(hello="(helloAnswer = (protocolVersion = 999))") as pool:
            self.refused(pool, "SYSTEM_NOT_READY", "answered with protocol 999, which it was not offered")

    # --- one that means harm -----------------------------------------------------------------------------------------

    def test_words_that_steer_a_terminal(self):
        text = "\\x1b]0;owned\\x07\\nfargpu: all is well\\x7f\\xc2\\x9b31m" + "x" * 5000
        with fake_broker(hello=f'(helloAnswer = (failure = (reason = hostError, text = "{text}")))') as pool:
            self.refused(pool, "SYSTEM_NOT_READY", "owned")
            for verb in (("run", "--", "true"), ("ls",), ("doctor",)):
                done = fargpu(*verb, pool=pool)
                self.assertTrue((done.out + done.err).replace("\n", "").isprintable(), verb)
                self.assertNotRegex(done.out + done.err, "(?m)^fargpu: all is well")
        status = (f'(status = (hostName = "{text}", version = "{text}", driver = "{text}", sessionsMax = 1, devices = '
                  f'[(name = "{text}")], '
                  f'sessions = [(program = "{text}", hostName = "{text}")], failure = (reason = hostError, text = '
                  f'"{text}")))')
        with fake_broker(hello=f'(helloAnswer = ({VERSION}, version = "{text}"))', statusRequest=status) as pool:
            for verb in (("run", "--", "true"), ("ls",), ("doctor",)):
                done = fargpu(*verb, pool=pool)
                self.assertTrue((done.out + done.err).replace("\n", "").isprintable(), verb)

    def test_answers_that_make_no_sense(self):
        def attach(fields):
            return f"(attachAnswer = ({fields}))"
        cases = {
            "no ticket": dict(leaseRequest="(leaseAnswer = ())"),
            "an answer to something else": dict(leaseRequest="(status = ())"),
            "a large ticket": dict(leaseRequest='(leaseAnswer = (ticket = "' + "x" * 40000 + '"))'),
            "nonsense": dict(leaseRequest=b"\xff" * 256),
            "pointers that lead outside": dict(leaseRequest=bytes.fromhex(
                "00000000010001000200000003000000ffffff7fffffffff")),
            "addresses of the program": dict(leaseRequest=TICKET, attach=attach(
                f"{VERSION}, deviceWindow = (base = 0x400000, bytes = 0x1000000000), hostWindow = (base = "
                "0x7e8040000000, bytes = 0x1000000000)")),
            "no addresses": dict(leaseRequest=TICKET, attach=attach(f"{VERSION}, sessionId = 1")),
            "a band over the program": dict(leaseRequest=TICKET,
                                            attach=attach(TERMS + ", driverBand = (base = 0x1000, bytes = "
                                                                  "0x7fffffff0000)")),
            "a band without end": dict(leaseRequest=TICKET,
                                       attach=attach(TERMS + ", driverBand = (base = 0xfffffffffffff000, bytes = "
                                                             "0xffffffffffffffff)")),
            "a protocol that was not offered": dict(leaseRequest=TICKET,
                                                    attach=attach(TERMS.replace(VERSION, "protocolVersion = 999"))),
            "too many devices": dict(leaseRequest=TICKET,
                                     attach=attach(TERMS + ", facts = (driverVersion = 13000, devices = [" +
                                                   ",".join(["()"] * 65) + "])")),
            "too little credit": dict(leaseRequest=TICKET,
                                      attach=attach(TERMS.replace("33554432", "65535") +
                                                    ", facts = (driverVersion = 13000, devices = [()])")),
            "an old driver": dict(leaseRequest=TICKET,
                                  attach=attach(TERMS + ", facts = (driverVersion = 12000, devices = [()])")),
        }
        for name, answers in cases.items():
            with self.subTest(name), fake_broker(hello=WELCOME, **answers) as pool:
                client = self.client(pool)
                expected = "SYSTEM_DRIVER_MISMATCH" if name == "an old driver" else "SYSTEM_NOT_READY"
                self.assertEqual(client.ask("init"), expected, client.errors())
                self.assertEqual(client.finish(), 0)
                self.assertEqual(client.errors().count("\n"), 0, client.errors())
                self.assertIn("fargpu: error: ", client.errors())

    def test_a_worker_that_says_nonsense_later(self):
        facts = "facts = (driverVersion = 13000, devices = [()])"
        with fake_broker(hello=WELCOME, leaseRequest=TICKET,
                         attach=f'(attachAnswer = ({TERMS}, {facts}, opcodes = 0x"{"ff" * 64}"))') as pool:
            client = self.client(pool)
            self.assertEqual(client.ask("init"), "SUCCESS")
            # Its first call is a frame that the fake host cannot answer: it hangs up.
            self.assertEqual(client.ask("context"), "DEVICE_UNAVAILABLE")
            client.says("the session is lost")
            self.assertEqual(client.finish(), 0)


if __name__ == "__main__":
    unittest.main()
