"""A broker ends, by force or in order, and the next one takes over its sessions: they go on, and are in its books."""

import os
import random
import signal
import socket
import sys
import tempfile
import time
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_gone, wait_until
from rig.ports import free_port
from rig.proxy import Proxy

MIB = 1 << 20
TCP = {"FARGPU_TRANSPORT": "tcp"}


class TakeOverTest(SystemTest):
    """What both have."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name, "sessions")
        self.port = 0

    def start_broker(self, *options, **more):
        host = self.broker("--runtime-folder", str(self.folder), *options, port=self.port, **more)
        self.port = host.port
        return host

    def kill(self, host):
        host.process.kill()
        host.wait(output=False)  # its workers write to the same stderr

    def replace(self, host, *options, **more):
        self.kill(host)
        return self.start_broker(*options, **more)

    def session(self, host, *commands, **more):
        """Of a client, and its worker."""
        client = self.client(host, "init", "context", *commands, **more)
        return client, self.worker_of(host, client)

    def told(self, host):
        """What users are told of each session."""
        kept = ("id", "pid", "program", "tenant", "lease", "worker")
        return sorted(tuple(session.get(name) for name in kept) for session in host.sessions())

    def use(self, host):
        """Of devices, by process."""
        return {session["pid"]: sum(session["memory_bytes"]) for session in host.sessions()}

    def command(self):
        return [paths.FARGPUD, "--driver", paths.FAKE_DRIVER, "--image-folder", "", "--config", os.devnull,
                "--runtime-folder", str(self.folder)]


class Sessions(TakeOverTest):
    def test_by_force(self):
        host = self.start_broker()
        client, worker = self.session(host, f"alloc a {MIB}", "write a 17")
        before = self.told(host)
        idle = wait_until(lambda: [w for w in host.workers() if w != worker], "a warm worker")[0]
        host = self.replace(host)
        wait_gone(idle)
        self.assertEqual(host.log("session taken over")["worker"], str(worker))
        for told in host.logged("sessions of an earlier fargpud"):  # which other tests may have
            self.assertNotIn(str(worker), told["workers"].split(", "))
        self.assertEqual(self.told(host), before)
        self.assert_lives(client)
        self.assertEqual(client.must(f"alloc b {MIB}"), "SUCCESS")
        other, _ = self.session(host)
        self.assertEqual(len({session["id"] for session in host.sessions()}), 2)
        self.assertEqual(other.finish(), 0)
        self.assertEqual(client.finish(), 0)
        self.assertEqual(client.errors(), "")
        wait_gone(worker)
        self.assertEqual(host.log("session ended", session=before[0][0])["reason"], "the client left")
        wait_until(lambda: not host.sessions(), "no session")
        wait_until(lambda: len(list(self.folder.glob("worker-*"))) == 1, "the warm worker's door alone")

    def test_in_order(self):
        host = self.start_broker()
        clients = [self.session(host, f"alloc a {MIB}", f"write a {number}")[0] for number in range(3)]
        before = self.told(host)
        host.process.signal(signal.SIGUSR1)
        self.assertEqual(host.wait(output=False), 0)
        self.assertEqual(host.log("left")["sessions"], "3")
        for client in clients:
            self.assert_lives(client)
        host = self.start_broker()
        self.assertEqual(self.told(host), before)
        for client in clients:
            self.assert_lives(client)
            self.assertEqual(client.finish(), 0)

    def test_nothing_is_left_without_a_folder(self):
        host = self.broker("--drain-seconds", "0")
        client, worker = self.session(host)
        host.process.signal(signal.SIGUSR1)
        self.assertEqual(host.wait(), 0)
        wait_gone(worker)
        client.says("the host's fargpud is shutting down")

    def test_what_is_held_counts_from_the_first_moment(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
            settings.write('[tenant.default]\nmemory = "96MiB"\nsessions = 2\n')
            settings.flush()
            host = self.start_broker(config=settings.name)
            kept, _ = self.session(host, f"alloc a {MIB}", env={"FARGPU_MEM": "64MiB", "FARGPU_GPUS": "1"})
            loose, _ = self.session(host, f"alloc a {24 * MIB}")
            host = self.replace(host, config=settings.name)
            third = self.client(host)
            self.assertEqual(third.ask("init"), "SYSTEM_NOT_READY")
            third.says("2 sessions")
            self.assertEqual(loose.ask(f"alloc b {16 * MIB}"), "OUT_OF_MEMORY")
            self.assertEqual(kept.ask(f"alloc b {64 * MIB}"), "OUT_OF_MEMORY")
            self.assertEqual(kept.must(f"alloc b {62 * MIB}"), "SUCCESS")
            self.assertEqual(loose.finish(), 0)
            wait_until(lambda: len(host.sessions()) == 1, "its end")
            fourth, _ = self.session(host)
            self.assertEqual(fourth.must(f"alloc a {30 * MIB}"), "SUCCESS")
            self.assertEqual(fourth.ask(f"alloc b {4 * MIB}"), "OUT_OF_MEMORY")

    def test_what_ended_meanwhile_is_free(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
            settings.write('[tenant.default]\nmemory = "96MiB"\n')
            settings.flush()
            host = self.start_broker(config=settings.name)
            stays, _ = self.session(host, f"alloc a {MIB}")
            goes, worker = self.session(host, f"alloc a {64 * MIB}")
            self.kill(host)
            self.assertEqual(goes.finish(), 0)
            wait_gone(worker)
            self.start_broker(config=settings.name)
            self.assertEqual(stays.must(f"alloc b {90 * MIB}"), "SUCCESS")

    def test_processes_of_one_job_keep_their_lease(self):
        host = self.start_broker()
        job = {"FARGPU_JOB": "5" * 32, "FARGPU_MEM": "32MiB", "FARGPU_GPUS": "1"}
        first, _ = self.session(host, env=job)
        host = self.replace(host)
        second, _ = self.session(host, env=job)
        self.assertEqual(len({session["lease"] for session in host.sessions()}), 1)
        first.must(f"alloc a {20 * MIB}")
        self.assertEqual(second.ask(f"alloc a {20 * MIB}"), "OUT_OF_MEMORY")

    def test_lanes_are_opened_after_it(self):
        host = self.start_broker()
        client, _ = self.session(host, f"alloc a {64 * MIB}", env={**TCP, "FARGPU_COMPRESS": "off"})
        self.replace(host)
        client.must("scatter a 5")
        self.assertEqual(client.ask("check a"), "SUCCESS same")
        self.assertEqual(client.errors(), "")

    @unittest.skipIf(paths.SANITIZED, "it needs the software GPU")
    def test_memory_of_each_other(self):
        gpu = {"driver": paths.SOFTWARE_GPU}
        host = self.start_broker(**gpu)
        maker, _ = self.session(host, f"alloc a {8 * MIB}", "write a 17")
        early, _ = self.session(host)
        handle = maker.must("export a").split()[1]
        early.must(f"open a {handle}")
        second, _ = self.session(host)
        second.must(f"open a {handle}")
        host = self.replace(host, **gpu)
        late, _ = self.session(host)
        late.must(f"open a {handle}")
        self.assertEqual(late.ask("close a"), "SUCCESS")
        self.assertEqual(early.ask("close a"), "SUCCESS")
        early.must(f"open a {handle}")
        self.assertEqual(maker.finish(), 0)
        wait_until(lambda: len(host.sessions()) == 3, "the maker's end")
        host = self.replace(host, **gpu)  # nobody is left who has made it
        self.assertEqual(len(host.logged("session taken over")), 3)
        self.assertEqual(host.logged("worker failed"), [])
        use = self.use(host)
        self.assertEqual(sorted((use[early.pid], use[second.pid])), [0, 8 * MIB])
        self.assertEqual(early.ask("close a"), "SUCCESS")
        self.assertEqual(second.ask("close a"), "SUCCESS")
        wait_until(lambda: not any(self.use(host).values()), "nothing in use")
        self.assertEqual(host.logged("worker failed"), [])

    def test_turns_go_on(self):
        host = self.start_broker("--policy", "fair")
        clients = [self.session(host, "load", f"alloc a {MIB}", "write a 1")[0] for _ in range(2)]
        for client in clients:
            client.begin_loop("work_forever a")
        host = self.replace(host, "--policy", "fair")

        def calls():
            return {session["pid"]: session["calls"] for session in host.sessions()}

        wait_until(lambda: all(calls().values()), "a word of each")
        before = calls()
        wait_until(lambda: all(now > before[pid] + 50 for pid, now in calls().items()), "calls of both")

    def test_it_ends_sessions_as_others(self):
        host = self.start_broker()
        first, worker = self.session(host)
        second, other_worker = self.session(host)
        third, killed = self.session(host, f"alloc a {MIB}", "write a 1")
        host = self.replace(host, "--drain-seconds", "1")
        numbers = {session["pid"]: session["id"] for session in host.sessions()}
        self.assertEqual(fargpu("end", str(numbers[first.pid]), pool=host.pool).code, 0)
        first.says("an administrator of the host has ended it")
        wait_gone(worker)
        os.kill(killed, signal.SIGKILL)
        host.log("worker died", worker=killed)
        self.assertEqual(third.ask("check a"), "DEVICE_UNAVAILABLE")
        host.terminate()
        self.assertEqual(host.wait(), 0)
        second.says("the host's fargpud is shutting down")
        wait_gone(other_worker)

    def test_again_and_again(self):
        host = self.start_broker()
        clients = [self.session(host, "load", f"alloc a {MIB}", "write a 1")[0] for _ in range(2)]
        clients[0].begin_loop("work_forever a")
        dice = random.Random(5)
        for _ in range(8):
            self.kill(host)
            host = None
            early = self.start([*self.command(), "--listen", f"127.0.0.1:{self.port}"])
            time.sleep(dice.uniform(0, 0.4))  # into any step of its start
            early.kill()
            early.wait(output=False)
            host = self.start_broker()
            self.assertEqual(len(host.logged("session taken over")), 2)
            self.assert_lives(clients[1])
        self.assertEqual({session["pid"] for session in host.sessions()}, {client.pid for client in clients})

    def test_a_client_that_is_cut_meanwhile_comes_back(self):
        host = self.start_broker("--resume-seconds", "60")
        proxy = Proxy(host)
        self.addCleanup(proxy.close)
        client = self.client(proxy.pool, "init", "context", f"alloc a {MIB}", "write a 17", env=TCP)
        self.worker_of(host, client)
        self.kill(host)
        proxy.cut()
        client.begin("check a")
        client.says("its calls wait until it is back")
        host = self.start_broker("--resume-seconds", "60")
        self.assertEqual(client.answer(), "SUCCESS same")
        host.log("session taken over")
        wait_until(lambda: [session["state"] for session in host.sessions()] == ["running"], "the client's return")


# Starts a program with listening sockets, as a service manager does.
GIVE = """
import os, socket, sys
for number, address in enumerate(sys.argv[1].split(","), 3):
    if address.isdigit():
        listener = socket.create_server(("127.0.0.1", int(address)))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
    os.dup2(listener.fileno(), number) if listener.fileno() != number else os.set_inheritable(number, True)
    listener.detach()
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(number - 2), LISTEN_FDNAMES="first:second")
print("listens", file=sys.stderr, flush=True)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Listening(TakeOverTest):
    def given(self, *addresses):
        """Ports, or paths."""
        return [sys.executable, "-c", GIVE, ",".join(str(address) for address in addresses)]

    def test_sockets_that_listen_already(self):
        self.port, other = free_port(), free_port()
        host = self.start_broker(wrapper=self.given(self.port, other))
        self.assertEqual(host.log("not listening any more")["socket"], "second")
        client, worker = self.session(host, f"alloc a {MIB}", "write a 1")
        environment = Path(f"/proc/{worker}/environ").read_bytes()
        self.assertNotIn(b"LISTEN_", environment)
        self.assert_lives(client)
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", other)).close()

    def test_another_address_of_the_port(self):
        """As where `listen` was changed: the socket of before is in no way, nor is that of IPv4 in that of IPv6."""
        self.port = free_port()
        listen = f"tcp://0.0.0.0:{self.port},tcp://[::]:{self.port}"
        host = self.start_broker("--insecure", listen=listen, wrapper=self.given(self.port))
        self.assertEqual(host.log("not listening any more")["socket"], "first")
        client, _ = self.session(host, f"alloc a {MIB}", "write a 1")
        self.assert_lives(client)
        with socket.create_connection(("::1", self.port)):
            pass

    def test_nobody_is_refused_in_between(self):
        self.port = free_port()
        host = self.start_broker()
        stays, _ = self.session(host, f"alloc a {MIB}", "write a 1")
        self.kill(host)
        command = [*self.given(self.port), *self.command(), "--listen", f"127.0.0.1:{self.port}"]
        later = self.start(command)
        later.err.find(lambda line: "listens" in line)
        comes = self.client(host)  # long before the driver is initialised
        self.assertEqual(comes.ask("init"), "SUCCESS")
        self.assert_lives(stays)

    def test_a_unix_socket_that_listens_already(self):
        path = self.folder.parent / "socket"
        self.port = free_port()
        host = self.start_broker(listen=f"127.0.0.1:{self.port},unix:{path}", wrapper=self.given(path))
        self.assertEqual(host.logged("not listening any more"), [])
        self.assertEqual(fargpu("ls", pool=f"unix:{path}").code, 0)

    def test_a_broker_that_cannot_listen_leaves_the_sessions_to_the_next(self):
        host = self.start_broker()
        client, worker = self.session(host, f"alloc a {MIB}", "write a 1")
        self.kill(host)
        with socket.create_server(("127.0.0.1", free_port())) as taken:
            fails = self.start([*self.command(), "--listen", f"127.0.0.1:{taken.getsockname()[1]}"])
            self.assertEqual(fails.wait(output=False), 1)
        self.assert_lives(client)
        host = self.start_broker()
        self.assertEqual(host.log("session taken over")["worker"], str(worker))

    def test_sockets_of_others_are_left(self):
        """LISTEN_PID is another process's: of a shell between the manager and fargpud."""
        self.port = free_port()
        host = self.start_broker(env={"LISTEN_PID": "1", "LISTEN_FDS": "1"})
        self.assertEqual(self.session(host)[0].finish(), 0)


class Strangers(TakeOverTest):
    def fake_worker(self, name, says):
        """A process at a door of the folder that says so."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(listener.close)
        listener.bind(str(self.folder / name))
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)
                listener.listen()
                connection, _ = listener.accept()
                for message in says:
                    connection.send(message)
                connection.recv(1)
            finally:
                os._exit(0)
        self.addCleanup(os.waitpid, child, 0)
        self.addCleanup(os.kill, child, signal.SIGKILL)
        return child

    def listens(self, name):
        # 00010000: it listens.
        return any(line.endswith(str(self.folder / name)) and " 00010000 " in line
                   for line in Path("/proc/net/unix").read_text(encoding="ascii").splitlines())

    def test_what_is_no_worker_is_left_alone(self):
        host = self.start_broker()
        client, worker = self.session(host, f"alloc a {MIB}", "write a 17")
        self.kill(host)
        fakes = [self.fake_worker("worker-0000000000000001", [b"nonsense" * 4]),
                 self.fake_worker("worker-0000000000000002", [])]
        wait_until(lambda: all(self.listens(f"worker-000000000000000{number}") for number in (1, 2)), "them")
        begin = time.monotonic()
        host = self.start_broker()
        self.assertLess(time.monotonic() - begin, 15)
        refused = {int(event["worker"]) for event in host.logged("session not taken over")}
        self.assertLessEqual(set(fakes), refused)
        self.assertEqual([event["worker"] for event in host.logged("session taken over")], [str(worker)])
        self.assert_lives(client)

    def test_a_key_that_was_exchanged_opens_nothing(self):
        host = self.start_broker()
        client, worker = self.session(host, f"alloc a {MIB}", "write a 17")
        self.kill(host)
        (self.folder / "key").write_bytes(bytes(32))
        host = self.start_broker()
        self.assertEqual(host.log("session not taken over", worker=worker)["reason"],
                         "its record is not of this host's brokers")
        self.assert_lives(client)

    def refused(self, *options):
        process = self.start([*self.command(), "--listen", "127.0.0.1:0", *options])
        self.assertEqual(process.wait(), 2)
        return process.err.text()

    def test_folders_that_will_not_do(self):
        self.start_broker()
        self.assertIn("is in use by another fargpud; each needs one of its own", self.refused())
        self.folder = self.folder.parent / "open"
        self.folder.mkdir(0o755)
        self.assertIn("that nobody else may enter (mode 0700)", self.refused())
        self.folder = self.folder.parent / ("long" * 30)
        self.assertIn("is a path too long for Unix sockets in it", self.refused())
        self.folder = Path("/proc/none")
        self.assertIn("cannot be made", self.refused())


if __name__ == "__main__":
    unittest.main()
