"""How a session travels: by TCP, or through memory that client and worker share because they are on one machine."""

import os
import re
import signal
import socket
import stat
import tempfile
import threading
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, wait_gone, wait_until
from rig.wire import VERSION, Connection

MIB = 1 << 20
LOST = "DEVICE_UNAVAILABLE"
AUTO, TCP, SHM = ({"FARGPU_TRANSPORT": transport} for transport in ("auto", "tcp", "shm"))


def descriptors(pid):
    return sorted(re.sub(r"\d+", "N", os.readlink(link)) for link in Path(f"/proc/{pid}/fd").iterdir())


def mappings(pid):
    """Memory that client and worker share, in a process."""
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:fargpu" in line
            and "fargpu-account" not in line]


class Transport(SystemTest):
    def transport(self, host):
        """Of the only session, as the host's list has it."""
        (session,) = host.sessions()
        return session["transport"]

    def use(self, client):
        for command in ("init", "context", f"alloc a {3 * MIB}", "write a 7", "pin a", "write_pinned a", "sync",
                        "check a"):
            self.assertIn(client.ask(command), ("SUCCESS", "SUCCESS same"), command)


class Choice(Transport):
    def test_shared_memory_where_client_and_host_are_on_one_machine(self):
        host = self.broker()
        client = self.client(host, env=AUTO)
        self.use(client)
        self.assertEqual(self.transport(host), "shm")
        worker = self.worker_of(host, client)
        self.assertEqual(len(mappings(client.pid)), len(mappings(worker)))
        self.assertGreaterEqual(len(mappings(worker)), 2)  # what frames go through, what the program has pinned
        started = host.log("session started", pid=client.pid)
        self.assertEqual(started["transport"], "shm")
        self.assertEqual(started["peer"], f"unix:uid={os.getuid()},pid={client.pid}")

    def test_tcp_where_it_is_asked_for(self):
        host = self.broker()
        client = self.client(host, env=TCP)
        self.use(client)
        self.assertEqual(self.transport(host), "tcp")
        self.assertEqual(mappings(self.worker_of(host, client)), [])
        self.assertTrue(host.log("session started", pid=client.pid)["peer"].startswith("127.0.0.1:"))

    def test_tcp_where_the_host_shares_nothing(self):
        host = self.broker("--no-shared-memory")
        client = self.client(host, env=AUTO)
        self.use(client)
        self.assertEqual(self.transport(host), "tcp")
        refused = self.client(host, env=SHM)
        self.assertEqual(refused.ask("init"), "SYSTEM_NOT_READY")
        refused.says("FARGPU_TRANSPORT=shm, but")

    def test_a_socket_by_its_path(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/fargpud.sock"
            with socket.socket(socket.AF_UNIX) as left_behind:
                left_behind.bind(path)
            host = self.broker(listen=f"127.0.0.1:0,unix:{path}")
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o666)  # every user may come; the user's name decides
            for env in (AUTO, SHM):
                client = self.client(f"unix:{path}", env=env)
                self.use(client)
                self.assertEqual(self.transport(host), "shm")
                self.assertEqual(client.finish(), 0)
                wait_until(lambda: not host.sessions(), "the end of the session")
            done = fargpu("ls", pool=f"unix:{path}")
            self.assertEqual((done.code, done.err), (0, ""))
            refused = self.client(f"unix:{path}", env=TCP)
            self.assertEqual(refused.ask("init"), "SYSTEM_NOT_READY")
            refused.says("is no TCP address")

    def test_a_socket_that_is_in_use_or_cannot_be(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/fargpud.sock"
            self.broker(listen=f"127.0.0.1:0,unix:{path}")
            with self.assertRaises(AssertionError):
                self.broker(listen=f"unix:{path}").log("listening", seconds=1)
            file = Path(folder) / "precious"
            file.write_text("data")
            with self.assertRaises(AssertionError):
                self.broker(listen=f"unix:{file}").log("listening", seconds=1)
            self.assertEqual(file.read_text(), "data")
            nobody = self.client(f"unix:{folder}/nobody.sock", env=AUTO)
            self.assertEqual(nobody.ask("init"), "SYSTEM_NOT_READY")
            nobody.says("is fargpud running on this machine")

    def test_what_is_no_transport(self):
        client = self.client(self.broker(), env={"FARGPU_TRANSPORT": "pigeon"})
        self.assertEqual(client.ask("init"), "NO_DEVICE")
        client.says("FARGPU_TRANSPORT is 'pigeon'; use tcp, shm, rdma or auto")

    def test_it_is_said(self):
        host = self.broker()
        for env, words in ((SHM, "by shared memory"), (TCP, "by TCP")):
            done = fargpu("doctor", pool=host.pool, env=env)
            self.assertEqual(done.code, 0, done.out)
            self.assertIn(words, done.out)
            client = self.client(host, "init", env={**env, "FARGPU_LOG": "info"})
            client.says(words)


class Strangers(Transport):
    """Processes that are not the broker, or not on its machine."""

    def relay(self, host, port):
        """A port that leads to the host, as a tunnel does: from another address of this machine."""
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)

        def copy(from_, to):
            try:
                while data := from_.recv(65536):
                    to.sendall(data)
            except OSError:
                pass
            finally:
                to.close()

        def serve():
            try:
                while True:
                    near = server.accept()[0]
                    far = socket.create_connection((host, port), source_address=("127.0.0.3", 0))
                    for pair in ((near, far), (far, near)):
                        threading.Thread(target=copy, args=pair, daemon=True).start()
            except OSError:
                pass

        threading.Thread(target=serve, daemon=True).start()
        return "127.0.0.1:{}".format(server.getsockname()[1])

    def test_who_comes_from_elsewhere_hears_of_no_socket(self):
        host = self.broker()
        client = self.client(self.relay("127.0.0.1", host.port), env=AUTO)
        self.use(client)
        self.assertEqual(self.transport(host), "tcp")

    def hello(self, connection, more=""):
        connection.say(f'(hello = ({VERSION}, driverVersion = 13000, program = "p", hostName = "h", processId = '
                       f'1{more}))')
        return connection.hear()

    def field(self, answer, name):
        found = re.search(name + r' = (?:"((?:[^"\\]|\\.)*)"|0x"([0-9a-f ]*)")', answer)
        return found and (found[1] if found[1] is not None else found[2])

    def test_a_key_is_good_for_its_connection_and_there_only(self):
        host = self.broker()
        asker = self.connection(host)
        answer = self.hello(asker)
        name, key, proof = (self.field(answer, field) for field in ("localSocket", "localKey", "localProof"))
        self.assertRegex(name, r"fargpud-[0-9a-f]{32}$")
        self.assertTrue(key and proof and key != proof)

        def by_socket(text):
            near = Connection.__new__(Connection)
            near.socket = socket.socket(socket.AF_UNIX)
            near.socket.settimeout(20)
            near.socket.connect("\0" + name)
            near._sent = 0
            self.addCleanup(near.close)
            return self.hello(near, text)

        def written(answer_field):
            return re.search(answer_field + r' = ("(?:[^"\\]|\\.)*"|0x"[^"]*")', answer)[1]

        named = f", localKey = {written('localKey')}"
        self.assertEqual(self.field(by_socket(named), "localProof"), proof)
        self.assertIsNone(self.field(by_socket(""), "localProof"))
        self.assertIsNone(self.field(by_socket(', localKey = "0123456789abcdef"'), "localProof"))
        other = self.hello(self.connection(host), named)  # by TCP a client is told its own proof only
        self.assertNotEqual(self.field(other, "localProof"), proof)
        asker.close()
        wait_until(lambda: self.field(by_socket(named), "localProof") is None, "the key is good no longer")


class Ends(Transport):
    def setUp(self):
        self.host = self.broker()
        self.neighbour = self.client(self.host, "init", "context", f"alloc a {MIB}", "write a 17", env=SHM)
        self.client_ = self.client(self.host, env=SHM)
        self.use(self.client_)
        self.worker = self.worker_of(self.host, self.client_)

    def test_a_worker_that_dies(self):
        os.kill(self.worker, signal.SIGKILL)
        self.client_.says("the session is lost")
        self.assertEqual(self.client_.ask("touch_pinned a"), "SUCCESS")  # the program keeps what it had
        for command in ("sync", "alloc b 1048576", "check a", "pin a", "unpin a"):
            self.assertEqual(self.client_.ask(command), LOST, command)
        self.assertEqual(self.client_.finish(), 0)
        self.assert_lives(self.neighbour)

    def test_a_client_that_dies(self):
        self.client_.begin_loop("work_forever a")
        os.kill(self.client_.pid, signal.SIGKILL)
        wait_gone(self.worker)
        self.assertIn("closed the connection", self.host.log("session ended", worker=self.worker)["reason"])
        self.assert_lives(self.neighbour)

    def test_a_client_that_leaves(self):
        self.assertEqual(self.client_.finish(), 0)
        wait_gone(self.worker)
        self.assertEqual(self.host.log("session ended", worker=self.worker)["reason"], "the client left")

    def test_a_host_that_shuts_down(self):
        self.host.process.signal(signal.SIGINT)
        self.client_.says("the host's fargpud is shutting down")

    def test_descriptors_are_not_kept(self):
        before = [descriptors(pid) for pid in (self.client_.pid, self.worker, self.host.pid)]
        for _ in range(5):
            for command in ("unpin a", "pin a", "write a 9", "check a"):
                self.client_.must(command)
        for _ in range(3):
            other = self.client(self.host, env=SHM)
            self.use(other)
            worker = self.worker_of(self.host, other)
            self.assertEqual(other.finish(), 0)
            wait_gone(worker)
        wait_until(lambda: self.host.status()["warm_workers"] == 1 and len(self.host.workers()) == 3,
                   "workers as before")
        self.assertEqual([descriptors(pid) for pid in (self.client_.pid, self.worker)], before[:2])
        wait_until(lambda: len(descriptors(self.host.pid)) <= len(before[2]), "no more descriptors than before")


if __name__ == "__main__":
    unittest.main()
