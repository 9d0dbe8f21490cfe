"""Device memory of sessions goes to the host's memory, and comes back at their next call: when an operator wants it,
when others want the room, and in turns where leases hold more than the device has."""

import json
import os
import tempfile
import threading
import time
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths, small_disk, wait_until
from rig.process import run

MIB = 1 << 20
TCP = {"FARGPU_TRANSPORT": "tcp"}


class EvictionTest(SystemTest):
    """A host whose software GPU has 256 MiB, which all its workers share."""

    def host(self, *options, memory="256MiB", host_memory="4GiB", env=None, **more):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        return self.broker("--evicted-bytes-max", host_memory, "--evict-quantum-seconds", "1", "--warm-context=false",
                           *options, driver=paths.SOFTWARE_GPU,
                           env={"FARGPU_SOFTGPU_MEMORY": memory, "FARGPU_SOFTGPU_THREADS": "1",
                                "FARGPU_SOFTGPU_SHARED": str(self.folder / "devices"), **(env or {})}, **more)

    def session(self, host, *commands, **more):
        client = self.client(host, "init", "context", "load", *commands, "sync", **more)
        return client, int(host.log("session started", pid=client.pid)["session"])

    def state(self, host, session):
        return next(one for one in host.sessions() if one["id"] == session)

    def wait_for_state(self, host, session, state):
        def found():
            one = self.state(host, session)
            return one if one["state"] == state else None
        return wait_until(found, state)

    def evict(self, host, session, code=0):
        done = fargpu("evict", str(session), pool=host.pool)
        self.assertEqual(done.code, code, done.out + done.err)
        return done.out + done.err

    def evict_of_a_tenant_with_little_memory_of_the_host(self, says, **more):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
            settings.write('[tenant.default]\nadministrator = true\nhost_memory = "16MiB"\n')
            settings.flush()
            host = self.host(config=settings.name)
            client, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 5", env=TCP)
            self.assertIn(says, self.evict(host, session, **more))
            self.assertEqual(client.ask("check a"), "SUCCESS same")


class ByRequest(EvictionTest):
    def test_memory_leaves_and_comes_back(self):
        for transport in ("tcp", "shm"):
            host = self.host()
            client, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 7", f"alloc b {MIB}", "write b 9",
                                           f"alloc zeros {32 * MIB}", "write zeros 0",
                                           env={"FARGPU_TRANSPORT": transport})
            before = host.status()["devices"][0]["used_bytes"]
            self.assertIn("lie in the host's memory", self.evict(host, session))
            told = host.log("session evicted", session=session)
            self.assertGreaterEqual(int(told["bytes"]), 73 * MIB)
            # The zeros take nothing.
            self.assertLess(int(told["host_bytes"]), int(told["bytes"]) - 24 * MIB)
            state = self.state(host, session)
            self.assertEqual(state["state"], "evicted")
            self.assertEqual(state["away_bytes"], int(told["bytes"]))
            self.assertGreaterEqual(sum(state["memory_bytes"]), 73 * MIB)  # it holds it all the same
            self.assertLess(host.status()["devices"][0]["used_bytes"], before - 72 * MIB)
            self.assertIn("evicted since", fargpu("ls", pool=host.pool).out)
            for block in ("a", "b", "zeros"):
                self.assertEqual(client.ask(f"check {block}"), "SUCCESS same")
            host.log("session returned", session=session)
            self.assertEqual(self.state(host, session)["state"], "running")
            self.assertEqual(host.status()["devices"][0]["used_bytes"], before)
            self.assertEqual(client.must("launch b"), "SUCCESS")
            self.assertEqual(client.ask("sync"), "SUCCESS")
            self.evict(host, session)
            self.assertEqual(client.must(f"alloc c {MIB}"), "SUCCESS")
            self.assertEqual(client.ask("check a"), "SUCCESS same")
            self.evict(host, session)
            self.assertEqual(client.finish(), 0)
            host.log("session ended", session=session)

    def test_the_trace_of_its_program_shows_it(self):
        host = self.host()
        file = self.folder / "trace.json"
        client, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 7",
                                       env={"FARGPU_TRACE": file, **TCP})
        self.evict(host, session)
        self.assertGreater(self.state(host, session)["host_bytes"], 40 * MIB)
        self.assertEqual(client.ask("check a"), "SUCCESS same")
        self.assertEqual(client.finish(), 0)
        events = [event for event in json.loads(file.read_text(encoding="utf-8")) if event.get("cat") == "memory"]
        names = ["device memory leaves", "device memory is away", "device memory waits for room",
                 "device memory returns"]
        self.assertEqual([(event["name"], event["ph"]) for event in events],
                         [(name, end) for name in names for end in "be"])
        self.assertGreaterEqual({event["args"]["bytes"] for event in events}.pop(), 40 * MIB)
        times = [event["ts"] for event in events]
        self.assertEqual(times, sorted(times))
        self.assertGreater(times[1], times[0])

    def test_others_use_the_room(self):
        host = self.host()
        first, session = self.session(host, f"alloc a {150 * MIB}", "scatter a 3")
        self.evict(host, session)
        second, _ = self.session(host, f"alloc a {150 * MIB}", "scatter a 4")
        self.assertEqual(second.ask("check a"), "SUCCESS same")
        # The second is idle: it makes room for the first.
        self.assertEqual(first.ask("check a"), "SUCCESS same")
        self.assertEqual(second.ask("check a"), "SUCCESS same")

    def test_again_and_again_under_work(self):
        """What a program computes is the same however often its memory moves."""
        for transport in ("tcp", "shm"):
            host = self.host()
            client, session = self.session(host, f"alloc a {24 * MIB}", "scatter a 3", f"alloc b {MIB}",
                                           env={"FARGPU_TRANSPORT": transport})
            over = threading.Event()
            outcomes = []

            def evict():
                while not over.is_set():
                    outcomes.append(fargpu("evict", str(session), pool=host.pool).code)

            thread = threading.Thread(target=evict)
            thread.start()
            try:
                for round_ in range(40):
                    self.assertEqual(client.ask(f"rewrite a {MIB} 5"), "SUCCESS")
                    self.assertEqual(client.ask("check a"), "SUCCESS same")
                    client.must(f"write b {round_}")
                    self.assertEqual(client.ask("check b"), "SUCCESS same")
                    client.must("launch b")
                    self.assertEqual(client.ask("sync"), "SUCCESS")
            finally:
                over.set()
                thread.join()
            self.assertGreater(outcomes.count(0), 3)
            self.assertGreater(len(host.logged("session returned")), 3)
            self.assertEqual(client.errors(), "")
            self.assertEqual(client.finish(), 0)

    def test_memory_of_the_programs_own_making(self):
        host = self.host()
        client, session = self.session(host, f"make a {40 * MIB}", "scatter a 7")
        for _ in range(2):
            self.evict(host, session)
            self.assertEqual(self.state(host, session)["away_bytes"], 40 * MIB)
            self.assertEqual(client.ask("check a"), "SUCCESS same")
        self.assertEqual(client.finish(), 0)

    def test_calls_that_only_ask_leave_the_memory_where_it_is(self):
        host = self.host()
        client, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 7")
        free = client.must("free_bytes")
        self.evict(host, session)
        for _ in range(3):
            self.assertEqual(client.must("free_bytes"), free)  # what is away is its own
            self.assertEqual(client.ask("sync"), "SUCCESS")
        self.assertEqual(self.state(host, session)["state"], "evicted")
        self.assertEqual(host.logged("session returned"), [])
        self.assertEqual(client.ask("check a"), "SUCCESS same")
        host.log("session returned", session=session)

    def test_a_copy_waits_for_no_more_than_it_needs(self):
        for transport in ("tcp", "shm"):
            host = self.host()
            client, session = self.session(host, f"alloc a {150 * MIB}", "scatter a 3", f"alloc b {8 * MIB}",
                                           "scatter b 4", env={"FARGPU_TRANSPORT": transport})
            self.evict(host, session)
            other, _ = self.session(host, f"alloc a {150 * MIB}")
            other.must("export a")  # so that it stays
            self.assertEqual(client.ask("check b"), "SUCCESS same")
            self.assertGreater(self.wait_for_state(host, session, "waiting for memory")["away_bytes"], 40 * MIB)
            client.must("write b 9")
            self.assertEqual(client.ask("check b"), "SUCCESS same")
            client.must("launch b")  # may use all
            answers = []
            waiting = threading.Thread(target=lambda: answers.append(client.ask("sync")))
            waiting.start()
            waiting.join(1)
            self.assertEqual(answers, [])
            self.assertEqual(other.finish(), 0)
            waiting.join()
            self.assertEqual(answers, ["SUCCESS"])
            self.assertEqual(client.ask("check a"), "SUCCESS same")
            self.assertEqual(self.state(host, session)["state"], "running")
            self.assertEqual(client.finish(), 0)

    def test_what_cannot_leave(self):
        host = self.host()
        client, session = self.session(host, f"alloc a {MIB}", "write a 7")
        client.must("export a")
        said = self.evict(host, session, code=125)
        self.assertIn("no memory that can leave", said)
        self.assertIn("not evicted: it has no memory that can leave", fargpu("ls", pool=host.pool).out)
        self.assertEqual(client.ask("check a"), "SUCCESS same")

    def test_refusals(self):
        host = self.host()
        self.assertIn("there is no session 77", self.evict(host, 77, code=125))
        plain = self.broker()
        client = self.client(plain, "init", "context", f"alloc a {MIB}")
        session = int(plain.log("session started", pid=client.pid)["session"])
        self.assertIn("evicted_bytes_max and evicted_disk_bytes_max are 0", self.evict(plain, session, code=125))
        small = self.host(host_memory="8MiB")
        client, session = self.session(small, f"alloc a {40 * MIB}", "scatter a 5")
        self.assertIn("no room for its", self.evict(small, session, code=125))
        self.assertEqual(client.ask("check a"), "SUCCESS same")

    def test_memory_of_the_host_is_charged_to_the_tenant(self):
        self.evict_of_a_tenant_with_little_memory_of_the_host("host_memory of the tenant", code=125)

    def test_the_worker_of_an_evicted_session_dies(self):
        host = self.host()
        client, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 5")
        worker = self.worker_of(host, client)
        self.evict(host, session)
        os.kill(worker, 9)
        host.log("session ended", session=session)
        self.assertEqual(host.status()["devices"][0]["used_bytes"], 0)
        self.assertNotEqual(client.ask("check a"), "SUCCESS same")

    def test_the_client_of_an_evicted_session_dies(self):
        host = self.host()
        client, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 5")
        self.evict(host, session)
        client.process.kill()
        host.log("session ended", session=session)


class OnDisk(EvictionTest):
    """Where the host's memory has no room."""

    def host(self, *options, folder=None, disk="1GiB", **more):
        if folder is None:
            temporary = tempfile.TemporaryDirectory()
            self.addCleanup(temporary.cleanup)
            folder = temporary.name
        self.disk = Path(folder)
        return super().host("--evicted-folder", folder, "--evicted-disk-bytes-max", disk, *options, **more)

    def test_memory_leaves_and_comes_back(self):
        for memory in ("0", "48MiB"):
            host = self.host(host_memory=memory)
            client, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 7", f"alloc zeros {32 * MIB}",
                                           "write zeros 0")
            for _ in range(2):
                self.assertIn("lie on the host's disk", self.evict(host, session))
                state = self.state(host, session)
                self.assertEqual(state["away_host_bytes"], 0)
                self.assertGreaterEqual(state["away_disk_bytes"], 40 * MIB)
                self.assertLess(state["away_disk_bytes"], 60 * MIB)  # zeros take nothing
                self.assertEqual(state["away_bytes"], 72 * MIB)
                self.assertIn(" on disk", fargpu("ls", pool=host.pool).out)
                self.assertEqual(list(self.disk.iterdir()), [])  # the file has no name
                self.assertEqual(client.ask("check a"), "SUCCESS same")
                self.assertEqual(client.ask("check zeros"), "SUCCESS same")
            self.assertEqual(self.state(host, session)["away_disk_bytes"], 0)
            # What fits into the host's memory goes there.
            small, session = self.session(host, f"alloc a {8 * MIB}", "scatter a 7")
            self.assertIn("the host's disk" if memory == "0" else "the host's memory", self.evict(host, session))
            self.assertEqual(small.ask("check a"), "SUCCESS same")

    def test_a_tenant_without_memory_of_the_host(self):
        self.evict_of_a_tenant_with_little_memory_of_the_host("lie on the host's disk")

    @unittest.skipUnless(small_disk.possible(), "this machine lets nobody mount a tmpfs")
    def test_a_full_disk(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        disk = small_disk.SmallDisk(Path(place.name), "64m")
        self.addCleanup(disk.close)
        host = self.host(folder=str(disk.seen), host_memory="0")
        client, session = self.session(host, f"alloc a {80 * MIB}", "scatter a 5")
        said = self.evict(host, session, code=125)
        self.assertIn("the file for evicted memory: No space left on device", said)
        self.assertEqual(client.ask("check a"), "SUCCESS same")
        small, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 6")
        self.evict(host, session)  # the room is there again
        self.assertEqual(small.ask("check a"), "SUCCESS same")
        self.assertEqual(client.ask("check a"), "SUCCESS same")

    def test_a_folder_in_which_no_file_can_be_made(self):
        done = run([paths.FARGPUD, "--check", "--config", os.devnull, "--driver", paths.SOFTWARE_GPU,
                    "--evicted-folder", "/proc", "--evicted-disk-bytes-max", "1GiB"])
        self.assertNotEqual(done.code, 0)
        self.assertIn("evicted_folder is '/proc', and fargpud can make no file there", done.err)
        place = tempfile.TemporaryDirectory()
        host = self.host(folder=place.name, host_memory="0")
        client, session = self.session(host, f"alloc a {8 * MIB}", "scatter a 5")
        place.cleanup()
        self.assertIn("the host could make no file for it", self.evict(host, session, code=125))
        self.assertEqual(client.ask("check a"), "SUCCESS same")

    def test_bounds(self):
        host = self.host(host_memory="0", disk="16MiB")
        client, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 5")
        self.assertIn("no room for its 40", self.evict(host, session, code=125))
        self.assertEqual(client.ask("check a"), "SUCCESS same")

    def test_the_next_broker_knows(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        host = self.host("--runtime-folder", folder.name, host_memory="0")
        devices, port = self.folder, host.port
        client, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 3")
        self.evict(host, session)
        before = self.state(host, session)["away_disk_bytes"]
        host.process.kill()
        host.wait(output=False)
        host = self.host("--runtime-folder", folder.name, host_memory="0", port=port,
                         env={"FARGPU_SOFTGPU_SHARED": str(devices / "devices")})
        self.assertEqual(self.wait_for_state(host, session, "evicted")["away_disk_bytes"], before)
        self.assertEqual(client.ask("check a"), "SUCCESS same")


class Wanted(EvictionTest):
    def test_idle_sessions_make_room_for_an_allocation(self):
        host = self.host()
        idle, session = self.session(host, f"alloc a {150 * MIB}", "scatter a 3")
        time.sleep(1.5)
        busy, _ = self.session(host, f"alloc a {150 * MIB}", "scatter a 4")
        host.log("session evicted", session=session)
        self.assertEqual(busy.ask("check a"), "SUCCESS same")
        time.sleep(1.5)
        self.assertEqual(idle.ask("check a"), "SUCCESS same")
        self.assertEqual(idle.errors(), "")
        self.assertEqual(busy.errors(), "")

    def test_no_more_leaves_than_is_wanted(self):
        host = self.host()
        idle, session = self.session(host, *(f"alloc a{i} {20 * MIB}" for i in range(8)), "scatter a0 3",
                                     "scatter a7 4")
        time.sleep(1.5)
        busy, _ = self.session(host, f"alloc a {100 * MIB}", "scatter a 5")
        host.log("session evicted", session=session)
        first = self.state(host, session)["away_bytes"]
        self.assertGreaterEqual(first, 100 * MIB)
        self.assertLess(first, 130 * MIB)
        busy.must(f"alloc b {40 * MIB}")
        self.assertEqual(self.state(host, session)["away_bytes"], first)
        busy.must(f"alloc c {70 * MIB}")  # and then more
        self.assertGreaterEqual(self.state(host, session)["away_bytes"], first + 20 * MIB)
        self.evict(host, session)  # and the rest
        self.assertGreaterEqual(self.state(host, session)["away_bytes"], 160 * MIB)
        time.sleep(1.5)
        for block in ("a0", "a7"):
            self.assertEqual(idle.ask(f"check {block}"), "SUCCESS same")
        self.assertEqual(busy.ask("check a"), "SUCCESS same")
        self.assertEqual(idle.finish(), 0)
        self.assertEqual(busy.finish(), 0)

    def test_large_memory_comes_back_in_parts(self):
        """So that not all of it has to leave the next time."""
        host = self.host()
        clients = [self.session(host, f"alloc a {150 * MIB}", f"scatter a {number}") for number in range(2)]
        away = []
        for _ in range(3):
            for number, (client, session) in enumerate(clients):
                time.sleep(1.5)
                self.assertEqual(client.ask("check a"), "SUCCESS same")
                away.append(self.state(host, clients[1 - number][1])["away_bytes"])
        self.assertGreaterEqual(away[0], 150 * MIB)
        self.assertLess(away[-1], 90 * MIB)
        self.assertGreater(away[-1], 40 * MIB)
        client, session = clients[0]
        self.assertIn("NOT_SUPPORTED", client.ask("export a"))
        client.says("has left its device")
        self.assertEqual(client.ask("free a"), "SUCCESS")
        self.assertEqual(client.ask(f"alloc a {150 * MIB}"), "SUCCESS")
        client.must("export a")
        for one, _ in clients:
            self.assertEqual(one.finish(), 0)

    def test_idle_sessions_make_room_for_an_array(self):
        host = self.host()
        idle, session = self.session(host, f"alloc a {150 * MIB}", "scatter a 3")
        time.sleep(1.5)
        busy, _ = self.session(host)
        self.assertEqual(busy.ask(f"array a {150 * MIB}"), "SUCCESS")
        host.log("session evicted", session=session)
        self.assertEqual(busy.finish(), 0)
        self.assertEqual(idle.ask("check a"), "SUCCESS same")

    def test_more_than_the_device_is_refused(self):
        host = self.host()
        _, session = self.session(host, f"alloc a {100 * MIB}")
        time.sleep(1.5)
        client, _ = self.session(host)
        self.assertEqual(client.ask(f"alloc a {400 * MIB}"), "OUT_OF_MEMORY")
        client.says("and device 0 has no room for it")
        self.assertEqual(client.ask(f"alloc a {100 * MIB}"), "SUCCESS")

    def test_two_that_work_take_turns(self):
        host = self.host("--memory-oversubscription", "1.5")
        env = {"FARGPU_MEM": "190MiB", "FARGPU_GPUS": "1"}
        clients = [self.session(host, f"alloc a {150 * MIB}", f"scatter a {number}", env=env)[0] for number in range(2)]
        rounds = [0, 0]
        end = time.monotonic() + 12

        def work(number):
            while time.monotonic() < end:
                self.assertEqual(clients[number].ask("check a"), "SUCCESS same")
                rounds[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        evictions = len(host.logged("session evicted"))
        self.assertGreaterEqual(evictions, 3)
        self.assertLessEqual(evictions, 14)
        self.assertGreater(min(rounds), 2)
        for client in clients:
            self.assertEqual(client.finish(), 0)

    def test_leases_are_granted_beyond_the_device(self):
        env = {"FARGPU_MEM": "190MiB", "FARGPU_GPUS": "1"}
        plain = self.host()
        self.session(plain, env=env)
        self.assertEqual(self.client(plain, env=env).ask("init"), "SYSTEM_NOT_READY")
        host = self.host("--memory-oversubscription", "1.5")
        kept = [self.session(host, env=env) for _ in range(2)]
        self.assertEqual(self.client(host, env=env).ask("init"), "SYSTEM_NOT_READY")
        self.assertEqual(self.client(host, env={**env, "FARGPU_MEM": "300MiB"}).ask("init"), "NOT_PERMITTED")
        # A lease sees what it was promised, wherever the others' memory is.
        kept[0][0].must(f"alloc a {180 * MIB}")
        free = int(kept[1][0].must("free_bytes").split()[1])
        self.assertGreater(free, 150 * MIB)

    def test_idle_sessions_leave_by_themselves(self):
        host = self.host("--evict-idle-seconds", "2")
        client, session = self.session(host, f"alloc a {40 * MIB}", "scatter a 3")
        self.assertEqual(self.wait_for_state(host, session, "evicted")["id"], session)
        self.assertEqual(client.ask("check a"), "SUCCESS same")

    def test_the_next_broker_knows(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        options = ("--runtime-folder", folder.name)
        host = self.host(*options)
        devices, port = self.folder, host.port
        client, session = self.session(host, f"alloc a {150 * MIB}", "scatter a 3")
        self.evict(host, session)
        host.process.kill()
        host.wait(output=False)
        host = self.host(*options, port=port, env={"FARGPU_SOFTGPU_SHARED": str(devices / "devices")})
        self.assertEqual(self.wait_for_state(host, session, "evicted")["away_bytes"] >= 150 * MIB, True)
        other, _ = self.session(host, f"alloc a {150 * MIB}", "scatter a 4")
        time.sleep(1.5)
        self.assertEqual(client.ask("check a"), "SUCCESS same")
        self.assertEqual(other.ask("check a"), "SUCCESS same")


class Many(SystemTest):
    def test_many_sessions_have_few_connections_of_streams_each(self):
        """So that a device has channels for all of them, however many they are."""
        host = self.broker(driver=paths.SOFTWARE_GPU)
        name = "CUDA_DEVICE_MAX_CONNECTIONS"
        first = self.client(host, "init")
        for _ in range(32):
            self.client(host, "init")
        late, wilful = self.client(host, "init"), self.client(host, "init", env={name: "4"})
        wanted = {first: None, late: "1", wilful: "4"}
        self.assertEqual({client: self.variables(host, client).get(name) for client in wanted}, wanted)

    def variables(self, host, client):
        text = Path(f"/proc/{self.worker_of(host, client)}/environ").read_text()
        return dict(variable.split("=", 1) for variable in text.split("\0") if "=" in variable)


if __name__ == "__main__":
    unittest.main()
