"""What users tell the client library by the environment: which devices, what to log, how much to count."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from rig import PATIENCE, SystemTest, paths, wait_until
from rig.process import environment

FIRST, SECOND = "Fake GPU 0", "Fake GPU 1"
NOBODY = 65534


class MoreRightsThanTheUser(SystemTest):
    """A set-user-ID program, whose user says by the environment what it is to read and write."""

    @unittest.skipIf(os.geteuid() != 0 or paths.SANITIZED, "only root makes such programs")
    def test_variables_are_not_read(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            folder.chmod(0o755)
            if os.statvfs(folder).f_flag & os.ST_NOSUID:
                self.skipTest("there are no such programs in this folder")
            python = Path(sys.executable).resolve()
            program = shutil.copy(python, folder / "program")
            library = shutil.copy(paths.LIBRARIES / "libcuda.so.1", folder / "libcuda.so.1")
            os.chmod(library, 0o755)
            os.chmod(program, 0o4755)
            kept = folder / "kept"
            kept.write_text("contents\n")
            secret = folder / "secret"
            secret.write_text("the first line\n")
            for file in (kept, secret):
                file.chmod(0o600)
            with socket.create_server(("127.0.0.1", 0)) as listener:
                listener.settimeout(0.1)
                pool = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
                variables = {"FARGPU_POOL": pool, "FARGPU_TOKEN_FILE": secret, "FARGPU_LOG": "debug,trace",
                             "FARGPU_LOG_FILE": kept, "FARGPU_TRACE": kept, "CUDA_LOG_FILE": kept}
                done = subprocess.run(
                    [program, "-c", "import ctypes, os, sys; print(os.geteuid() != os.getuid(), "
                                    "ctypes.CDLL(sys.argv[1]).cuInit(0))", library],
                    env=environment(variables), user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", text=True,
                    capture_output=True, timeout=PATIENCE)
                self.assertEqual(done.stdout, "True 100\n", done.stderr)
                self.assertIn("this program has more rights than its user", done.stderr)
                self.assertEqual(kept.read_text(), "contents\n")
                with self.assertRaises(TimeoutError):
                    listener.accept()


class VisibleDevices(SystemTest):
    def visible(self, host, value):
        """The names of the devices a program sees; None if it sees none and cuInit says so."""
        client = self.client(host, env={"CUDA_VISIBLE_DEVICES": value})
        result = client.ask("init")
        if result == "NO_DEVICE":
            self.assertEqual(client.ask("count"), "NOT_INITIALIZED -1")
            self.assertEqual(client.finish(), 0)
            return None
        self.assertEqual(result, "SUCCESS")
        count = int(client.must("count").split()[1])
        names = [client.must(f"device {n}").split(" ", 1)[1] for n in range(count)]
        self.assertEqual(client.ask(f"device {count}"), "INVALID_DEVICE ")
        client.must("context")
        client.must("alloc a 4096")
        client.must("write a 5")
        self.assert_lives(client)
        self.assertEqual(client.errors(), "")
        return names

    def test_filter_and_order(self):
        host = self.broker()
        uuids = [device["uuid"] for device in host.status()["devices"]]
        for value, names in ((None, [FIRST, SECOND]), ("0", [FIRST]), ("1", [SECOND]), ("1,0", [SECOND, FIRST]),
                             (" 1 , 0", [SECOND, FIRST]),
                             (uuids[1], [SECOND]), (f"{uuids[1]},0", [SECOND, FIRST]), ("0,7,1", [FIRST]),
                             ("0,0", None), ("", None),
                             ("-1", None), ("7", None), ("GPU-nonsense", None), ("NoDevFiles", None)):
            with self.subTest(value=value):
                self.assertEqual(self.visible(host, value), names)

    def test_what_a_program_sets_before_its_session_begins_counts(self):
        client = self.client(self.broker())
        client.must("version")
        client.must("setenv CUDA_VISIBLE_DEVICES 1")
        client.must("init")
        self.assertEqual(client.must("count"), "SUCCESS 1")
        self.assertEqual(client.must("device 0"), f"SUCCESS {SECOND}")

    def test_a_host_that_offers_some_of_its_devices(self):
        for devices, names in (("1", [SECOND]), ("1,0", [SECOND, FIRST])):
            with self.subTest(devices=devices):
                self.assertEqual(self.visible(self.broker("--devices", devices), None), names)

    def test_memory_is_taken_where_it_is_asked_for(self):
        host = self.broker()
        client = self.client(host, "init", env={"CUDA_VISIBLE_DEVICES": "1"})
        for command in ("context", f"alloc a {64 << 20}", "write a 1"):
            client.must(command)
        client.must("sync")
        wait_until(lambda: [d["used_bytes"] >= 64 << 20 for d in host.status()["devices"]] == [False, True],
                   "memory of the second device in use, and of no other")


class Logs(SystemTest):
    COMMANDS = ("init", "context", "load", "alloc a 65536", "write a 1", "launch a", "launch a", "launch a", "sync",
                "check a", "free a")

    def log_of(self, words, *commands, code=0, **env):
        client = self.client(self.broker(), *(commands or self.COMMANDS), env={"FARGPU_LOG": words, **env})
        self.assertEqual(client.finish(), code)
        return client.errors()

    def test_stats(self):
        text = self.log_of("stats")
        first = re.match(r"fargpu: ([\d.]+) s at 127\.0\.0\.1:\d+ by TCP, of which ([\d.e-]+) s \((\d+)%\) waited for "
                         r"the host in (\d+) round trips; "
                         r"\d+ KiB out, \d+ KiB in\n", text)
        self.assertTrue(first, text)
        self.assertLessEqual(float(first[2]), float(first[1]))
        self.assertLess(abs(int(first[3]) - 100 * float(first[2]) / float(first[1])), 5)
        calls = {name: (int(count), served)
                 for name, count, served in re.findall(r"(?m)^  (cu\w+) +(\d+)  (\w[\w ]*)$", text)}
        self.assertEqual(calls["cuLaunchKernel"], (3, "client or host"))
        self.assertEqual(calls["cuInit"], (1, "client or host"))
        self.assertEqual(calls["cuMemcpyHtoD_v2"][0], 1)
        self.assertEqual(calls["cuMemcpyDtoH_v2"][0], 1)
        self.assertEqual(calls["cuMemFree_v2"][0], 1)
        sent = {name: [int(n) for n in numbers.split()]
                for name, numbers in re.findall(r"(?m)^  (\w+) +((?:\d+ *){5})$", text)}
        frames, trips, _, sent_bytes, waited = sent["launch"]
        self.assertEqual(frames, 3)
        self.assertEqual(trips, 1)  # the first of a kernel is waited for, the others are not
        self.assertEqual(sent["copyIn"][0], 1)
        self.assertGreater(sent["copyIn"][3], 65536)
        self.assertEqual(sent["copyOut"][1], 1)
        total = re.search(r"round trips (\d+), bytes sent (\d+), bytes received (\d+)", text)
        self.assertEqual(int(total[1]), sum(row[1] for row in sent.values()))
        self.assertEqual(first[4], total[1])
        self.assertGreaterEqual(int(total[2]), sum(row[3] for row in sent.values()))
        self.assertGreater(int(total[3]), 65536)
        self.assertGreater(waited, 0)

    def test_stats_of_compressed_contents(self):
        commands = ("init", "context", f"alloc a {24 << 20}", "write a 1")
        for lanes in (0, 3):
            for mode, ways in (("on", ["to the host", "from the host"]), ("off", [])):
                with self.subTest(lanes=lanes, mode=mode):
                    client = self.client(self.broker(), *commands,
                                         env={"FARGPU_LOG": "stats", "FARGPU_TRANSPORT": "tcp", "FARGPU_LANES": lanes,
                                              "FARGPU_COMPRESS": mode})
                    self.assert_lives(client)
                    self.assertEqual(client.finish(), 0)
                    found = re.findall(r"compressed (to|from) the host: (\d+) bytes as (\d+)", client.errors())
                    self.assertEqual([f"{way} the host" for way, _, _ in found], ways)
                    for _, before, after in found:
                        self.assertGreaterEqual(int(before), 24 << 20)
                        self.assertLess(int(after), int(before) / 10)

    def test_stats_of_a_lost_session_too(self):
        host = self.broker()
        client = self.client(host, "init", "context", env={"FARGPU_LOG": "stats"})
        os.kill(self.worker_of(host, client), 9)
        client.says("the session is lost")
        self.assertEqual(client.finish(), 0)
        self.assertIn("waited for the host in", client.errors())

    def test_silence_unless_asked(self):
        self.assertEqual(self.log_of(""), "")
        self.assertEqual(self.log_of("error"), "")
        self.assertRegex(self.log_of("info"), r"^fargpu: session 1 at 127\.0\.0\.1:\d+, 2 devices, by TCP$")

    def test_a_profiler_hears_once_that_it_sees_nothing(self):
        client = self.client(self.broker(), "init", "context")
        self.assertEqual([client.ask("profile") for _ in range(3)], ["INVALID_VALUE"] * 3)
        client.must("sync")
        self.assertEqual(client.finish(), 0)
        self.assertRegex(client.errors(), r"\Afargpu: warning: profiling .* is not served[^\n]*\Z")

    def test_trace(self):
        lines = self.log_of("trace", "init", "context", "sync").splitlines()
        told = [re.fullmatch(r"fargpu: (\d\d:\d\d:\d\d\.\d{6}) thread \d+: (cu\w+)\(.*\) CUDA_SUCCESS", line)
                for line in lines]
        times = [call[1] for call in told if call]
        self.assertTrue(times == sorted(times) or times[0] > "23:59", times)
        calls = [call[2] for call in told if call]
        self.assertEqual([call for call in calls if call != "cuGetErrorName"],
                         ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxSynchronize"])

    def test_trace_with_arguments(self):
        """Of calls as they are made by a program: numbers, addresses that come back, kernels, kinds of copies."""
        lines = [line.split(": ", 2)[2] for line in self.log_of("trace", *Logs.COMMANDS).splitlines()]
        self.assertIn("cuInit(Flags=0) CUDA_SUCCESS", lines)
        self.assertRegex("\n".join(lines), r"(?m)^cuDeviceGet\(\*device=0, ordinal=0\) CUDA_SUCCESS$")
        [address] = [found[1] for found in (re.fullmatch(r"cuMemAlloc_v2\(\*dptr=(0x[0-9a-f]+), bytesize=65536\) "
                                                         r"CUDA_SUCCESS", line) for line in lines) if found]
        self.assertTrue(any(re.fullmatch(rf"cuMemcpyHtoD_v2\(dstDevice={address}, srcHost=0x[0-9a-f]+, "
                                         r"ByteCount=65536\) CUDA_SUCCESS: host to device, 65536 bytes", line)
                            for line in lines), lines)
        self.assertTrue(any(re.fullmatch(rf"cuMemcpyDtoH_v2\(dstHost=0x[0-9a-f]+, srcDevice={address}, "
                                         r"ByteCount=65536\) CUDA_SUCCESS: device to host, 65536 bytes", line)
                            for line in lines), lines)
        self.assertEqual(sum(bool(re.fullmatch(r"cuLaunchKernel\(f=fill32, gridDimX=\d+, gridDimY=1, .*, hStream=0, "
                                               r"kernelParams=0x[0-9a-f]+, extra=0\) CUDA_SUCCESS", line))
                             for line in lines), 3, lines)
        self.assertIn(f"cuMemFree_v2(dptr={address}) CUDA_SUCCESS", lines)

    def test_trace_by_shared_memory_and_beside_a_timeline(self):
        """The copy's kind stands in both."""
        with tempfile.TemporaryDirectory() as folder:
            text = self.log_of("trace", *Logs.COMMANDS, FARGPU_TRANSPORT="shm", FARGPU_TRACE=f"{folder}/trace.json")
            self.assertRegex(text, r"(?m)cuMemcpyHtoD_v2\(.*\) CUDA_SUCCESS: host to device, 65536 bytes$")
            events = json.loads(Path(folder, "trace.json").read_text(encoding="utf-8"))
            [written] = [event for event in events if event["name"] == "cuMemcpyHtoD_v2"]
            self.assertEqual(written["args"]["copy"], "host to device")

    def test_a_word_that_is_none(self):
        self.assertIn("FARGPU_LOG knows no 'verbose'; use error, warn", self.log_of("verbose", "init"))

    def test_into_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.log_of("stats", FARGPU_LOG_FILE=f"{folder}/log-%p.txt"), "")
            file = next(Path(folder).iterdir())
            self.assertRegex(file.name, r"^log-\d+\.txt$")
            self.assertIn("waited for the host in", file.read_text(encoding="utf-8"))
            # addresses and names of the program are nobody else's business
            self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        self.assertIn("cannot be written", self.log_of("stats", FARGPU_LOG_FILE="/no/such/folder/log"))


class Traces(SystemTest):
    """FARGPU_TRACE: what happened with the session over time, as viewers of traces read it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def traced(self, *commands, path=None, **env):
        host = self.broker()
        return host, self.client(host, *commands, env={"FARGPU_TRACE": path or self.folder / "trace.json", **env})

    def events(self, path=None, whole=True):
        text = (path or self.folder / "trace.json").read_text(encoding="utf-8")
        # of a process that has not ended: but for the last bracket it is JSON, once the first events are written
        if not whole:
            return json.loads(text + "]") if text else []
        return json.loads(text)

    @staticmethod
    def named(events, name):
        return [e for e in events if e["name"] == name]

    def test_calls_and_what_they_waited_for(self):
        _, client = self.traced(*Logs.COMMANDS)
        self.assertEqual(client.finish(), 0)
        events = self.events()
        for event in events:
            self.assertIn(event["ph"], "MXiC")
            self.assertEqual(event["pid"], client.pid)
            if event["ph"] == "X":
                self.assertGreaterEqual(event["dur"], 0)
                self.assertEqual(event["tid"], client.pid)  # its only thread that makes calls
        launches = self.named(events, "cuLaunchKernel")
        self.assertEqual([e["args"]["result"] for e in launches], ["CUDA_SUCCESS"] * 3)
        self.assertEqual([e["args"]["round_trips"] for e in launches], [1, 0, 0])  # the first of a kernel is waited for
        self.assertGreater(launches[0]["args"]["waited_us"], 0)
        self.assertEqual([e["args"]["waited_us"] for e in launches[1:]], [0, 0])
        self.assertTrue(all(e["args"]["bytes_out"] > 0 for e in launches))
        [written] = self.named(events, "cuMemcpyHtoD_v2")
        self.assertGreater(written["args"]["bytes_out"], 65536)
        [read] = self.named(events, "cuMemcpyDtoH_v2")
        self.assertGreaterEqual(read["args"]["bytes_in"], 65536)
        self.assertEqual([(e["args"]["kernel"], len(e["args"]["grid"]), len(e["args"]["block"]), e["args"]["stream"])
                          for e in launches],
                         [(launches[0]["args"]["kernel"], 3, 3, launches[0]["args"]["stream"])] * 3)
        self.assertRegex(launches[0]["args"]["kernel"], r"^[a-zA-Z_]\w*$")
        self.assertEqual([(e["args"]["copy"], e["args"]["bytes"]) for e in (written, read)],
                         [("host to device", 65536), ("device to host", 65536)])
        # A round trip lies within its call.
        [trip] = self.named(events, "round trip: copyOut")
        self.assertGreaterEqual(trip["ts"], read["ts"])
        self.assertLessEqual(trip["ts"] + trip["dur"], read["ts"] + read["dur"])
        self.assertGreaterEqual(read["args"]["waited_us"], trip["dur"])
        self.assertEqual({e["name"] for e in events if e["ph"] == "C"},
                         {f"stream {launches[0]['args']['stream']}: work in flight"})
        depths = [e["args"]["pieces"] for e in events if e["ph"] == "C"]
        self.assertGreater(max(depths), 0)

    def test_whose_session_it_was(self):
        host, client = self.traced("init", "context")
        self.assertEqual(client.finish(), 0)
        events = self.events()
        [session] = self.named(events, "session")
        self.assertEqual(session["args"]["host"], host.pool)
        self.assertEqual(session["args"]["session"], 1)
        self.assertEqual(session["args"]["devices"], [FIRST, SECOND])
        self.assertEqual(self.named(events, "process_name")[0]["args"]["name"], "commanded")
        self.assertEqual(len(self.named(events, "thread_name")), 1)
        self.assertGreater(self.named(events, "cuInit: a session")[0]["dur"], 0)

    def test_large_copies_by_lanes(self):
        _, client = self.traced("init", "context", f"alloc a {32 << 20}", "write a 1", FARGPU_LANES=4)
        self.assert_lives(client)
        self.assertEqual(client.finish(), 0)
        events = self.events()
        self.assertEqual([e["args"]["bytes"] for e in self.named(events, "bulk lanes: out")], [32 << 20])
        self.assertEqual([e["args"]["bytes"] for e in self.named(events, "bulk lanes: in")], [32 << 20])
        self.assertGreater(self.named(events, "cuMemcpyHtoD_v2")[0]["args"]["bytes_out"], 32 << 20)

    def test_a_process_that_is_killed_leaves_what_it_did(self):
        _, client = self.traced("init", "context", "alloc a 4096")
        for _ in range(50):
            client.must("write a 1")
        wait_until(lambda: self.named(self.events(whole=False), "cuMemAlloc_v2"),
                   "calls in the file while the process runs")
        os.kill(client.pid, 9)
        client.process.wait()
        self.assertTrue(self.named(self.events(whole=False), "cuMemAlloc_v2"))

    def test_a_lost_session_is_told(self):
        host, client = self.traced("init", "context")
        os.kill(self.worker_of(host, client), 9)
        client.says("the session is lost")
        self.assertEqual(client.finish(), 0)
        self.assertTrue(any(e["name"].startswith("the session is lost: ") for e in self.events()))

    def test_processes_of_a_job_have_files_of_their_own(self):
        host, first = self.traced("init", "context")
        second = self.client(host, "init", "context", env={"FARGPU_TRACE": self.folder / "trace.json"})
        third = self.client(host, "init", "context", env={"FARGPU_TRACE": self.folder / "of-%p.json"})
        for client in (first, second, third):
            self.assertEqual(client.finish(), 0)
        for client, name in ((first, "trace.json"), (second, f"trace.json.{second.pid}"),
                             (third, f"of-{third.pid}.json")):
            self.assertEqual({e["pid"] for e in self.events(self.folder / name)}, {client.pid})
            self.assertEqual((self.folder / name).stat().st_mode & 0o777, 0o600)

    def test_none_unless_asked_and_none_without_a_session(self):
        _, client = self.traced(FARGPU_POOL="none")
        self.assertEqual(client.ask("init"), "NO_DEVICE")
        self.assertEqual(list(self.folder.iterdir()), [])
        self.assertNotIn("FARGPU_TRACE", client.errors())

    def test_a_file_that_cannot_be(self):
        _, client = self.traced("init", "context", "alloc a 4096", "write a 1", path="/no/such/folder/trace.json")
        self.assert_lives(client)
        self.assertEqual(client.finish(), 0)
        self.assertEqual(client.errors().count("cannot be written"), 1)

    def test_what_is_no_file(self):
        """Nothing is waited for, and one line says why there is no trace."""
        os.mkfifo(self.folder / "pipe")
        for path, words in ((self.folder / "pipe", "cannot be written"), ("/dev/full", "is no file"),
                            (self.folder, "cannot be written")):
            with self.subTest(path=path):
                _, client = self.traced("init", "context", path=path)
                self.assertEqual(client.finish(), 0)
                self.assertEqual(client.errors().count("\n"), 0, client.errors())
                self.assertIn(f"FARGPU_TRACE '{path}' {words}; there will be no trace", client.errors())


if __name__ == "__main__":
    unittest.main()
