"""Strangers at the broker's port: whatever they send or do not send, clients are served meanwhile and nothing is left
of them."""

import contextlib
import os
import random
import resource
import signal
import socket
import struct
import tempfile
import time
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_gone, wait_until
from rig.broker import settings_file
from rig.wire import CALL, HEARTBEAT, VERSION, control, data_of, frame, worker_message

HELLO = f"(hello = ({VERSION}))"
LEASE = "(leaseRequest = ())"


def lease_with(name, value):
    return f'(leaseRequest = (environment = [(name = "{name}", value = "{value}")]))'


def attach_with(ticket):
    data = f'0x"{ticket}"' if ticket else '""'
    return f'(attach = (ticket = {data}, {VERSION}, driverVersion = 13000))'


class Intruders(SystemTest):
    def setUp(self):
        self.host = self.broker("--handshake-seconds", "2")

    def assert_serves(self, host=None):
        client = self.client(host or self.host, "init", "context", "alloc a 4096", "write a 3")
        self.assert_lives(client)
        self.assertEqual(client.finish(), 0)

    def welcome(self):
        connection = self.connection(self.host)
        connection.say(HELLO)
        self.assertIn("helloAnswer", connection.hear())
        return connection

    def leased(self):
        connection = self.welcome()
        connection.say(LEASE)
        answer = connection.hear()
        return connection, data_of("ticket", answer)

    def used_places(self):
        return self.host.status()["sessions_taken"]

    # --- bytes that are no frames, frames that are no messages, messages that do not belong --------------------------

    def test_nonsense(self):
        noise = random.Random(8470)
        cases = {
            "http": b"GET / HTTP/1.1\r\nHost: gpu\r\n\r\n",
            "tls": bytes.fromhex("16030100c8010000c40303") + noise.randbytes(200),
            "ssh": b"SSH-2.0-OpenSSH_9.2\r\n" + bytes(64),
            "noise": noise.randbytes(5000),
            "zeros": bytes(4096),
            "ones": b"\xff" * 4096,
            "a huge message": frame(message_bytes=0xFFFFFFF8),
            "a message beyond what strangers may send": frame(message_bytes=(64 << 10) + 8),
            "an odd length": frame(message_bytes=12),
            "bulk bytes": frame(control(HELLO), bulk_bytes=0x400000),
            "too many bulk bytes": frame(control(HELLO), bulk_bytes=0xFFFFFFFF),
            "a kind that is none": frame(control(HELLO), kind=77),
            "a call": frame(b"", kind=CALL, opcode=1),
            "a heartbeat": frame(b"", kind=HEARTBEAT),
            "pointers that lead outside": frame(bytes.fromhex("ffffff7fffffffff") * 4),
            "pointers to themselves": frame(bytes.fromhex("fcffffff0f000f00") * 64),
            "nothing in it": frame(),
            "a frame out of its turn": frame(control(HELLO), sequence=7),
            "an answer": frame(control("(helloAnswer = ())")),
            "a request before hello": frame(control("(statusRequest = void)")),
            "a lease before hello": frame(control(LEASE)),
            "calls of a session": frame(control("(goodbye = ())")),
        }
        connections = []
        for name, data in cases.items():
            connection = self.connection(self.host)
            connections.append((name, connection))
            connection.send(data)
        for name, connection in connections:
            with self.subTest(name):
                # At once if it can be told at once; what merely looks unfinished has its time.
                self.assertTrue(connection.is_closed())
        wait_until(lambda: len(self.host.logged("connection refused")) > len(cases) // 2,
                   "what was wrong with them in the log")
        self.assert_serves()

    def test_the_same_at_random(self):
        noise = random.Random(20_24)
        good = [frame(control(HELLO)), frame(control(LEASE), sequence=2),
                frame(control("(statusRequest = void)"), sequence=3)]
        connections = [self.connection(self.host) for _ in range(60)]
        for connection in connections:
            data = bytearray(b"".join(good[:noise.randrange(1, 4)]))
            for _ in range(noise.randrange(1, 8)):
                data[noise.randrange(len(data))] = noise.randrange(256)
            try:
                connection.send(data[:noise.randrange(len(data) + 1)])
            except OSError:
                pass  # cut off already
        for connection in connections:
            connection.close()
        self.assert_serves()
        wait_until(lambda: self.used_places() == 0, "nothing left of them")

    def test_nobody_becomes_another(self):
        connection = self.welcome()
        connection.say(HELLO)
        self.assertTrue(connection.is_closed())
        self.host.log("connection refused", reason="a second hello")

    def test_wishes_that_make_no_sense(self):
        for wish in ("gpus = 4294967295, memoryBytes = 18446744073709551615", "computePercent = 4294967295",
                     "priority = latencyCritical, gpus = 77",
                     "hold = true", "gpus = 65, waitMs = 4294967295"):
            with self.subTest(wish):
                connection = self.welcome()
                connection.say(f"(leaseRequest = ({wish}))")
                self.assertRegex(connection.hear(), "denied|badRequest")
        connection = self.welcome()
        connection.say('(leaseRequest = (job = "short"))')
        self.assertTrue(connection.is_closed())
        self.assert_serves()

    def test_another_version_of_the_protocol(self):
        connection = self.connection(self.host)
        connection.say('(hello = (protocolVersion = 999, program = "a\\x1b]0;b\\x7f", hostName = "h"))')
        answer = connection.hear()
        self.assertIn("versionMismatch", answer)
        self.assertRegex(answer, r"this host has an older fargpu \([0-9.]+, protocol 3\) than the client \(protocol "
                                 r"999\); update fargpu on the GPU host")
        self.assertTrue(connection.is_closed())
        self.assertEqual(self.host.log("client of another version")["protocol"], "999")

    def test_an_older_client_is_told_that_it_is_older(self):
        connection = self.connection(self.host)
        connection.say('(hello = (protocolVersion = 1, program = "p", hostName = "h"))')
        self.assertRegex(connection.hear(), r"the client has an older fargpu \(protocol 1\) than this host .*; update "
                                            r"fargpu on the client")

    def test_a_newer_client_that_speaks_this_hosts_protocol_too_is_welcome(self):
        connection = self.connection(self.host)
        connection.say(f'(hello = (protocolVersion = 999, oldestProtocol = {VERSION.split(" = ")[1]}, program = "p", '
                       'hostName = "h"))')
        answer = connection.hear()
        self.assertIn(VERSION, answer)
        self.assertNotIn("versionMismatch", answer)

    def test_another_version_at_attach(self):
        _, ticket = self.leased()
        connection = self.connection(self.host)
        connection.say(attach_with(ticket).replace(VERSION, "protocolVersion = 999"))
        self.assertIn("versionMismatch", connection.hear())
        self.assert_serves()

    def test_a_newer_driver_level_than_the_hosts(self):
        host = self.broker(env={"FARGPU_FAKE_VERSION": 12080})
        client = self.client(host)
        self.assertEqual(client.ask("init"), "SYSTEM_DRIVER_MISMATCH")
        client.says("set FARGPU_DRIVER_VERSION=12080")

    # --- clients that say nothing
    # --------------------------------------------------------------------------------------------------

    def test_silence(self):
        mute, halting = self.connection(self.host), self.connection(self.host)
        halting.send(frame(control(HELLO))[:40])
        for connection in (mute, halting):
            self.assertTrue(connection.is_closed())
        # A client that says a byte now and then does not get longer.
        slow = self.connection(self.host)
        since = time.monotonic()
        for byte in frame(control(HELLO)):
            try:
                slow.send(bytes([byte]))
            except OSError:
                break
            time.sleep(0.1)
        self.assertTrue(slow.is_closed())
        self.assertLess(time.monotonic() - since, 2 + 6)
        self.assert_serves()

    def test_a_flood_of_connections(self):
        host = self.broker(wrapper=["sh", "-c", 'ulimit -n 128; exec "$@"', "sh"])
        asking = self.connection(host)
        flood = [self.connection(host) for _ in range(200)]
        wait_until(lambda: len(host.logged("connection cut")) >= 100, "room made for later ones")
        self.assertTrue(asking.is_closed())  # the longest silent went first
        self.assert_serves(host)
        self.assertFalse(flood[-1].is_closed(seconds=0.01))

    @unittest.skipIf(paths.SANITIZED, "UndefinedBehaviorSanitizer opens a pipe to look at an object")
    def test_descriptors_run_out(self):
        self.host.log("local socket")  # the last that it opens
        busy = processor_seconds(self.host.pid)
        limits = resource.prlimit(self.host.pid, resource.RLIMIT_NOFILE)
        open_now = len(os.listdir(f"/proc/{self.host.pid}/fd"))
        resource.prlimit(self.host.pid, resource.RLIMIT_NOFILE, (open_now, limits[1]))
        connection = self.connection(self.host)  # in the system's queue
        connection.say(HELLO)
        self.host.log("cannot accept")
        time.sleep(1)  # not a wait for anything: the time in which it must not be busy with trying again
        self.assertLess(len(self.host.logged("cannot accept")), 30)  # ten a second, of each of its two sockets
        self.assertLess(processor_seconds(self.host.pid) - busy, 0.5)
        resource.prlimit(self.host.pid, resource.RLIMIT_NOFILE, limits)
        self.assertIn("helloAnswer", connection.hear())
        self.assert_serves()

    def test_a_descriptor_that_takes_long_to_close(self):
        """A connection is passed to the broker that waits for what it has to send when its last descriptor is closed,
        and nobody reads that."""
        def pass_one(path, server, hello):
            with socket.create_connection(server.getsockname()) as lingering, socket.socket(socket.AF_UNIX) as caller:
                self.addCleanup(server.accept()[0].close)
                lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
                lingering.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while lingering.send(bytes(1 << 20)):
                        pass
                caller.connect(path)
                caller.sendall(hello)
                try:
                    socket.send_fds(caller, [bytes(48)], [lingering.fileno()])
                except PermissionError:  # of Linux 6.16 and later
                    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))

        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
            host = self.broker("--handshake-seconds", "2", listen=f"127.0.0.1:0,unix:{folder}/socket")
            for hello in (b"", frame(control(HELLO))):
                pass_one(f"{folder}/socket", server, hello)
                since = time.monotonic()
                self.assert_serves(host)
                self.assertLess(time.monotonic() - since, 30)

    # --- places and tickets ------------------------------------------------------------------------------------------

    def test_tickets_are_good_once(self):
        _, ticket = self.leased()
        wrong = ["", "00" * 32, ticket[:-2], ticket + "00", ("ff" if ticket[:2] != "ff" else "00") + ticket[2:],
                 ticket[:-1] + ("0" if ticket[-1] != "0" else "1")]
        for guess in wrong:
            connection = self.connection(self.host)
            connection.say(attach_with(guess))
            answer = connection.hear()
            self.assertIn("denied", answer)
            self.assertIn("start the program again", answer)
            self.assertTrue(connection.is_closed())
        first = self.connection(self.host)
        first.say(attach_with(ticket))
        first.hear()  # a worker's answer: this one was right, though it offers no addresses
        second = self.connection(self.host)
        second.say(attach_with(ticket))
        self.assertIn("denied", second.hear())

    def test_a_place_is_given_up_with_its_connection(self):
        self.host = self.broker("--handshake-seconds", "3600")
        connection, ticket = self.leased()
        self.assertEqual(self.used_places(), 1)
        connection.close()
        wait_until(lambda: self.used_places() == 0, "the place free again")
        late = self.connection(self.host)
        late.say(attach_with(ticket))
        self.assertIn("denied", late.hear())

    def test_a_place_is_given_up_in_time(self):
        connection, _ = self.leased()
        wait_until(lambda: self.used_places() == 0, "the place free again")
        self.assertTrue(connection.is_closed())
        self.assert_serves()

    def test_one_place_a_connection(self):
        connection, _ = self.leased()
        connection.say(LEASE)
        self.assertTrue(connection.is_closed())
        self.assertIn("a second request", self.host.log("connection refused", peer=connection.peer)["reason"])

    def test_places_promised_count(self):
        host = self.broker("--sessions-max", "2")
        self.host = host
        held = [self.leased() for _ in range(2)]
        client = self.client(host)
        self.assertEqual(client.ask("init"), "SYSTEM_NOT_READY")
        client.says("all 2 sessions of this host are taken; try later")
        run = fargpu("run", "--", "true", pool=host.pool)
        self.assertEqual(run.code, 75)
        self.assertIn("all 2 sessions of this host are taken; try later", run.err)
        held[0][0].close()
        wait_until(lambda: self.used_places() == 1, "a place free again")
        self.assert_serves()

    def test_no_more_workers_stay_than_wanted(self):
        self.host = self.broker()  # which waits longer for its clients than it takes to start so many
        held = [self.leased()[0] for _ in range(5)]
        wait_until(lambda: len(self.host.workers()) == 6, "five workers promised and one warm")
        for connection in held:
            connection.close()
        wait_until(lambda: len(self.host.workers()) == 1, "one warm worker")
        self.assert_serves()

    # --- what clients may say of their workers' environment ----------------------------------------------------------

    def test_only_harmless_variables_reach_a_worker(self):
        for name, value in (("LD_PRELOAD", "/tmp/evil.so"), ("LD_LIBRARY_PATH", "/tmp"), ("PATH", "/tmp"),
                            ("CUDA_VISIBLE_DEVICES", ""),
                            ("CUDA_INJECTION64_PATH", "/tmp/evil.so"), ("CUDA_CACHE_PATH", "/"),
                            ("FARGPUD_DRIVER", "/tmp/evil.so"),
                            ("CUDA_MODULE_LOADING=X\\nLD_PRELOAD", "x"), ("", "x"), ("CUDA_CACHE_DISABLE", "1" * 65)):
            connection = self.welcome()
            connection.say(lease_with(name, value))
            answer = connection.hear()
            self.assertIn("badRequest", answer, name)
            self.assertTrue(connection.is_closed())
        many = self.welcome()
        many.say("(leaseRequest = (environment = [" +
                 ",".join('(name = "CUDA_CACHE_DISABLE", value = "1")' for _ in range(65)) + "]))")
        self.assertIn("too many", many.hear())
        self.assertEqual(len(self.host.workers()), 1)

        connection = self.welcome()
        connection.say(lease_with("CUDA_CACHE_DISABLE", "1"))
        self.assertIn("leaseAnswer", connection.hear())
        worker = next(w for w in self.host.workers() if "CUDA_CACHE_DISABLE=1" in environment_of(w))
        connection.close()
        wait_gone(worker)  # nobody else has a use for it

    def test_the_brokers_own_cuda_variables_stay_with_it(self):
        host = self.broker(env={"CUDA_VISIBLE_DEVICES": "1", "CUDA_FORCE_PTX_JIT": "1"})
        worker = wait_until(host.workers, "a warm worker")[0]
        self.assertFalse([v for v in environment_of(worker) if v.startswith("CUDA_")])


class Workers(SystemTest):
    """A worker executes what strangers sent, so the broker does not trust it either; and it may be slow."""

    def stubborn_broker(self, script, *options):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        worker = Path(folder.name, "worker")
        real = paths.FARGPUD.parent / "fargpu-worker"
        worker.write_text(f'#!/bin/sh\n[ -e {folder.name}/odd ] || exec {real} "$@"\n{script.format(real=real)}\n',
                          encoding="utf-8")
        worker.chmod(0o755)
        host = self.broker("--worker", worker, *options)
        Path(folder.name, "odd").touch()
        return host

    def test_one_that_does_not_start_in_time(self):
        host = self.stubborn_broker("exec sleep 600", "--start-seconds", "1")
        client = self.client(host, env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
        place = host.place()
        client.begin("init")
        stuck = int(host.log("worker started", start=place)["worker"])
        self.assertEqual(client.answer(), "SYSTEM_NOT_READY")
        client.says("the worker was not ready within 1 s")
        wait_gone(stuck)
        wait_until(lambda: host.status()["sessions_taken"] == 0, "its place free again")
        self.client(host, "init", "context")

    def test_one_that_is_still_starting_when_the_host_shuts_down(self):
        host = self.stubborn_broker("exec sleep 600")
        client = self.client(host, env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
        place = host.place()
        client.begin("init")
        stuck = int(host.log("worker started", start=place)["worker"])
        host.terminate()
        self.assertEqual(client.answer(), "SYSTEM_NOT_READY")
        self.assertEqual(host.wait(), 0)
        wait_gone(stuck)

    def test_one_of_another_release(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        ready = Path(folder.name, "ready")
        ready.write_bytes(worker_message('(ready = (facts = (devices = [(name = "a device")]), release = "0.0.9"))'))
        says = (f"import socket, sys, time\nlink = socket.socket(fileno=int(sys.argv[sys.argv.index('--link') + 1]))\n"
                f"link.send(open('{ready}', 'rb').read())\ntime.sleep(600)")
        script = Path(folder.name, "says.py")
        script.write_text(says, encoding="utf-8")
        host = self.stubborn_broker(f'exec /usr/bin/python3 {script} "$@"')
        client = self.client(host, env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
        self.assertEqual(client.ask("init"), "SYSTEM_NOT_READY")
        client.says("is of fargpu 0.0.9, fargpud of")
        client.says("install both from the same package")

    def test_one_that_dies_with_its_ticket_unused(self):
        host = self.broker()
        connection = self.connection(host)
        connection.say(HELLO)
        connection.hear()
        connection.say(LEASE)
        ticket = data_of("ticket", connection.hear())
        promised = int(host.log("worker ready")["worker"])
        os.kill(promised, signal.SIGKILL)
        host.log("worker died", worker=promised)
        late = self.connection(host)
        late.say(attach_with(ticket))
        self.assertIn("denied", late.hear())
        self.client(host, "init", "context")


class Waiting(SystemTest):
    def test_clients_that_wait_for_a_session_of_their_tenant_cost_nothing(self):
        with settings_file("[tenant.default]\nsessions = 1\n") as file:
            host = self.broker(config=file)
        first = self.client(host, "init", "context")
        waiting = [self.client(host, env={"FARGPU_WAIT": "60s"}) for _ in range(3)]
        for client in waiting:
            client.begin("init")
        wait_until(lambda: len(host.logged("lease waits")) >= len(waiting), "clients that wait")
        busy = processor_seconds(host.pid)
        time.sleep(2)
        self.assertLess(processor_seconds(host.pid) - busy, 0.5)
        self.assertEqual(first.finish(), 0)
        wait_until(lambda: len(host.logged("session started")) == 2, "one of them to have the session")


def environment_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().decode(errors="replace").split("\0")


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    unittest.main()
