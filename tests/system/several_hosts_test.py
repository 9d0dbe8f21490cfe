"""One program with devices of several hosts. See programs/spanning.cpp."""

import os
import pathlib
import re
import signal
import socket
import tempfile
import time
import unittest

from rig import SystemTest, fargpu, paths, wait_until
from rig.broker import settings_file


class SeveralHosts(SystemTest):
    def hosts(self, number=2, devices=2, options=(), **more):
        return [self.broker(*options, env={"FARGPU_FAKE_DEVICES": devices, "FARGPU_FAKE_HOST": host}, **more)
                for host in range(number)]

    def pool(self, hosts, scheme=""):
        return ",".join(scheme + host.pool for host in hosts)

    def program(self, hosts, *arguments, gpus=3, span=2, env=None):
        return self.start([paths.PROGRAMS / "spanning", *arguments],
                          env={"FARGPU_POOL": self.pool(hosts), "LD_LIBRARY_PATH": paths.LIBRARIES,
                               "FARGPU_GPUS": gpus, "FARGPU_HOSTS": span, **(env or {})})

    def line(self, process, place=0):
        return process.out.find(lambda text: text, place)

    # --- devices -----------------------------------------------------------------------------------------------------

    def test_devices_are_numbered_across_hosts_and_no_session_begins_before_one_is_used(self):
        hosts = self.hosts()
        program = self.program(hosts, "facts", gpus=4)
        self.assertEqual(self.line(program)[0], "devices 4 buses 4 uuids 4")
        self.assertEqual([len(host.sessions()) for host in hosts], [0, 0])
        self.assertEqual([len(host.status()["leases"]) for host in hosts], [1, 1])
        program.send_line("on")
        self.assertEqual(program.wait(), 0)
        wait_until(lambda: not any(host.status()["leases"] for host in hosts), "no lease left behind")

    def test_one_host_before_several(self):
        hosts = self.hosts()
        program = self.program(hosts, "facts", gpus=2)
        self.assertEqual(self.line(program)[0], "devices 2 buses 2 uuids 2")
        self.assertEqual(sorted(len(host.status()["leases"]) for host in hosts), [0, 1])

    def test_without_leave_devices_are_of_one_host(self):
        hosts = self.hosts()
        program = self.program(hosts, "facts", gpus=3, span=1)
        self.assertNotEqual(program.wait(), 0)

    def test_a_job_has_its_devices_for_all_its_programs(self):
        hosts = self.hosts()
        done = fargpu("run", "-n", "3", "--hosts", "2", "--", "sh", "-c",
                      f"echo $FARGPU_SPLIT; {paths.PROGRAMS}/spanning facts < /dev/null; "
                      f"{paths.PROGRAMS}/spanning facts < /dev/null", pool=self.pool(hosts))
        self.assertEqual(done.code, 0, done.err)
        split, *programs = done.out.splitlines()
        self.assertEqual(sorted(split.split(",")), ["1", "2"])
        self.assertEqual(programs, ["devices 3 buses 3 uuids 3"] * 2)
        wait_until(lambda: not any(host.status()["leases"] for host in hosts), "no lease left behind")

    def test_all_or_none(self):
        hosts = self.hosts()
        holds = self.start([paths.FARGPU, "run", "-n", "1", "-m", "800MiB", "--", "sh", "-c", "echo on; read line"],
                           env={"FARGPU_POOL": hosts[0].pool})
        holds.out.find(lambda line: line == "on")
        done = fargpu("run", "-n", "4", "-m", "800MiB", "--hosts", "2", "--", "true", pool=self.pool(hosts))
        self.assertEqual(done.code, 75, done.err)
        self.assertIn("no 2 hosts of the pool have 4 GPUs with 800.0 MiB free together (3 GPUs of all hosts that "
                      "answer)", done.err)
        self.assertEqual(sum(len(host.status()["leases"]) for host in hosts), 1)
        holds.send_line("on")
        self.assertEqual(holds.wait(), 0)

    def test_what_can_never_be_had_is_refused_for_good(self):
        hosts = self.hosts()
        for options, said in (
                (("-n", "5", "--hosts", "2"), "2 hosts of FARGPU_POOL could ever give 5 GPUs: they have 4 GPUs for it; "
                                              "ask for fewer"),
                (("-n", "1", "-m", "100GiB", "--hosts", "2"), "2 hosts of FARGPU_POOL could ever give 1 GPU with 100.0 "
                                                              "GiB: they have 0 GPUs for it; ask for less"),
                (("-n", "3"), "")):
            done = fargpu("run", *options, "--wait", "20s", "--", "true", pool=self.pool(hosts))
            self.assertEqual(done.code, 126, done.err)
            self.assertIn(said, done.err)
        # One that does not answer may have them.
        done = fargpu("run", "-n", "5", "--hosts", "3", "--", "true", pool=self.pool(hosts) + ",127.0.0.1:1")
        self.assertEqual(done.code, 75, done.err)
        done = fargpu("run", "-n", "5", "--", "true", pool=self.pool(hosts) + ",127.0.0.1:1")
        self.assertEqual(done.code, 125, done.err)
        self.assertIn("cannot connect to 127.0.0.1:1", done.err)

    def test_a_host_that_did_not_answer_serves_a_job_that_waits(self):
        one, two = self.hosts(devices=1)
        two.close()
        holds = self.start([paths.FARGPU, "run", "-n", "1", "-c", "100%", "--", "sh", "-c", "echo on; read line"],
                           env={"FARGPU_POOL": one.pool})
        self.line(holds)
        job = self.start([paths.FARGPU, "run", "-n", "1", "-c", "100%", "--wait", "60s", "--", "sh", "-c",
                          "echo $FARGPU_POOL"], env={"FARGPU_POOL": f"{one.pool},{two.pool}"})
        wait_until(lambda: one.status()["waiting"], "it waits")
        self.broker(env={"FARGPU_FAKE_DEVICES": 1, "FARGPU_FAKE_HOST": 1}, port=two.port)
        self.assertEqual(job.wait(), 0, job.err.text())
        self.assertIn(two.pool, job.out.text())
        holds.send_line("on")
        self.assertEqual(holds.wait(), 0)

    @unittest.skipIf(paths.SANITIZED, "its workers place nothing anywhere in particular")
    def test_a_host_that_is_named_twice_is_used_once(self):
        one, two = self.hosts(devices=1)
        other = f"localhost:{one.port}"
        for pool, line in ((f"{one.pool},{one.pool}", f"{one.pool} stands in FARGPU_POOL twice, and is used once"),
                           (f"{one.pool},{other}", None)):
            done = fargpu("run", "-n", "2", "--hosts", "2", "-c", "100%", "--", "true", pool=pool)
            self.assertEqual(done.code, 126, done.err)
            listed = fargpu("ls", pool=pool)
            self.assertEqual((listed.code, len(re.findall(r" fargpud \d", listed.out))), (0, 1), listed.out)
            for told in (done, listed):
                warnings = [text for text in told.err.splitlines() if " used once" in text]
                self.assertEqual(len(warnings), 1, told.err)
                self.assertIn(line or f"{other}", warnings[0])
            self.assertIn("leads to this host too: it is used once",
                          fargpu("doctor", pool=pool, seconds=60).out)
        done = fargpu("run", "-n", "2", "--hosts", "2", "--", "true", pool=f"{one.pool},{one.pool},{two.pool}")
        self.assertEqual(done.code, 0, done.err)

    def test_a_host_that_is_silent_is_named(self):
        one, = self.hosts(1, devices=1)
        with socket.create_server(("127.0.0.1", 0)) as mute:
            silent = f"127.0.0.1:{mute.getsockname()[1]}"
            done = fargpu("run", "-n", "2", "--hosts", "2", "--", "true", pool=f"{one.pool},{silent}")
        self.assertEqual(done.code, 75, done.err)
        self.assertIn(f"{silent} has not answered yet", done.err)

    def test_a_session_that_cannot_be_used_is_ended_before_another_one_is_asked_for(self):
        with settings_file("[tenant.default]\nsessions = 1\n") as file:
            hosts = self.hosts(options=("--resume-seconds", "60"), config=file)
        program = self.program(hosts, "crowded", gpus=4)
        self.assertEqual(self.line(program)[0], "last 46")
        program.err.find(lambda text: "where the GPU host's driver places its variables, are in use" in text)
        wait_until(lambda: len(hosts[1].logged("session ended")) == 8, "all that were tried have ended")
        self.assertEqual(hosts[1].logged("session resuming"), [])
        self.assertEqual(program.wait(), 0)

    # --- work --------------------------------------------------------------------------------------------------------

    def test_work_across_hosts(self):
        for transport in ("tcp", "auto"):
            with self.subTest(transport=transport):
                program = self.program(self.hosts(), "work", env={"FARGPU_TRANSPORT": transport})
                code = program.wait(seconds=200)
                self.assertEqual((code, program.out.text().strip()), (0, "fine"), program.err.text())

    # --- from host to host -------------------------------------------------------------------------------------------

    def copied(self, program):
        """Bytes that went directly, and through the program."""
        found = re.search(r"bytes that went directly (\d+), through this program (\d+)", program.err.text())
        self.assertTrue(found, program.err.text())
        return tuple(int(bytes_) for bytes_ in found.groups())

    def works(self, hosts, env=None, pool=None):
        settings = {"FARGPU_LOG": "info,stats", "FARGPU_POOL": pool or self.pool(hosts), **(env or {})}
        program = self.program(hosts, "work", env=settings)
        code = program.wait(seconds=200)
        self.assertEqual((code, program.out.text().strip()), (0, "fine"), program.err.text())
        return program

    def test_copies_and_waits_go_directly(self):
        hosts = self.hosts()
        program = self.works(hosts)
        directly, through = self.copied(program)
        self.assertGreater(directly, 100 << 20)
        self.assertEqual(through, 0)
        self.assertEqual(program.err.text().count("go directly"), 2, program.err.text())  # one each way
        wait_until(lambda: not any(host.sessions() for host in hosts), "the sessions have ended")

    @unittest.skipUnless(paths.UCX_PLUGIN.exists(), "built without UCX")
    def test_by_rdma_where_the_sessions_go_by_it(self):
        hosts = self.hosts(options=paths.UCX_BROKER)
        for env, way in ((paths.UCX_CLIENT, "RDMA"), ({"FARGPU_TRANSPORT": "tcp"}, "TCP")):
            program = self.works(hosts, env)
            self.assertEqual(self.copied(program)[1], 0)
            self.assertEqual(program.err.text().count(f"go directly, by {way}"), 2, program.err.text())

    @unittest.skipUnless(paths.UCX_PLUGIN.exists(), "built without UCX")
    def test_by_tcp_where_one_session_does_not_go_by_rdma(self):
        hosts = [self.broker(*options, "--no-shared-memory", env={"FARGPU_FAKE_DEVICES": 2, "FARGPU_FAKE_HOST": host})
                 for host, options in enumerate((paths.UCX_BROKER, ("--rdma-networks", "none")))]
        program = self.works(hosts, {**paths.UCX_CLIENT, "FARGPU_TRANSPORT": "auto"})
        self.assertEqual(self.copied(program)[1], 0)
        self.assertEqual(program.err.text().count("go directly, by TCP"), 2, program.err.text())

    def test_with_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder) / "keys"
            keys.touch(mode=0o600)
            keys.write_text("default:" + "7a" * 32 + "\n", encoding="ascii")
            hosts = self.hosts(options=("--psk-file", str(keys)), listen="tls://127.0.0.1:0")
            program = self.works(hosts, {"FARGPU_PSK_FILE": str(keys)}, self.pool(hosts, "tls://"))
            self.assertEqual(self.copied(program)[1], 0)

    def test_hosts_that_may_not_connect_leave_it_to_the_program(self):
        # One that strangers can reach connects nowhere, unless its settings say so.
        hosts = self.hosts(options=("--insecure",), listen="127.0.0.1:0,0.0.0.0:0")
        program = self.works(hosts)
        self.assertEqual(self.copied(program)[0], 0)
        lines = [line for line in program.err.text().splitlines() if "go through this program" in line]
        self.assertEqual(len(lines), 2, program.err.text())
        for line in lines:
            self.assertIn("may not connect to 127.0.0.1:", line)
            self.assertIn("its setting `peers`", line)
        self.assertIn("setting `peers`", hosts[0].log("no link")["reason"])

    def test_hosts_connect_where_their_settings_say_so(self):
        hosts = self.hosts(options=("--insecure", "--peers", "10.0.0.0/8,127.0.0.0/8"), listen="127.0.0.1:0,0.0.0.0:0")
        self.assertEqual(self.copied(self.works(hosts))[1], 0)

    def test_a_host_that_stands_still_in_the_middle_of_a_copy(self):
        hosts = self.hosts(options=("--silence-seconds", "3", "--handshake-seconds", "3"))
        program = self.program(hosts, "rounds")
        _, place = self.line(program)
        program.send_line("copy")
        answer, place = self.line(program, place)
        self.assertEqual(answer, "first 0 last 0")
        for worker in hosts[1].sessions():
            os.kill(worker["worker"], signal.SIGSTOP)
            self.addCleanup(self.go_on, worker["worker"])
        began = time.monotonic()
        program.send_line("copy")
        program.err.find(lambda text: "is lost" in text, seconds=60)
        answer, place = self.line(program, place)
        self.assertLess(time.monotonic() - began, 40)
        program.send_line("")
        answer, place = self.line(program, place)
        self.assertEqual(answer, "first 0 last 46")

    @staticmethod
    def go_on(process):
        try:
            os.kill(process, signal.SIGCONT)
        except ProcessLookupError:
            pass

    # --- failures ----------------------------------------------------------------------------------------------------

    def test_a_host_that_is_lost_takes_its_own_devices_only(self):
        for lost in (0, 1):
            for command in ("", "copy"):
                with self.subTest(lost=lost, command=command):
                    hosts = self.hosts()
                    program = self.program(hosts, "rounds")
                    _, place = self.line(program)
                    program.send_line("copy")
                    answer, place = self.line(program, place)
                    self.assertEqual(answer, "first 0 last 0")
                    for worker in hosts[lost].sessions():
                        os.kill(worker["worker"], signal.SIGKILL)
                    program.err.find(lambda text: "is lost" in text)
                    wanted = "first 46 last 0" if lost == 0 else "first 0 last 46"
                    for number in range(3):
                        program.send_line(command if number == 0 else "")
                        answer, place = self.line(program, place)
                        if number > 0:  # the first may still have a late error
                            self.assertEqual(answer, wanted)
                    self.assertEqual(program.err.text().count("is lost"), 1, program.err.text())

    def test_a_job_goes_on_with_the_hosts_that_answer(self):
        hosts = self.hosts()
        job = self.start([paths.FARGPU, "run", "-n", "4", "--hosts", "2", "--", "sh", "-c",
                          f"echo ready; read line; {paths.PROGRAMS}/spanning facts < /dev/null"],
                         env={"FARGPU_POOL": self.pool(hosts)})
        self.line(job)
        hosts[0].close()
        job.send_line("on")
        self.assertEqual(job.wait(), 0, job.err.text())
        self.assertIn("devices 2 buses 2 uuids 2", job.out.text())
        self.assertIn("goes on with the GPUs of the other hosts", job.err.text())


if __name__ == "__main__":
    unittest.main()
