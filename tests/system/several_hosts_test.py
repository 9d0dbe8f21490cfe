"""One program with devices of several hosts. See programs/spanning.cpp."""

import os
import signal
import unittest

from rig import SystemTest, fargpu, paths, wait_until


class SeveralHosts(SystemTest):
    def hosts(self, number=2, devices=2):
        return [self.broker(env={"FARGPU_FAKE_DEVICES": devices, "FARGPU_FAKE_HOST": host})
                for host in range(number)]

    def pool(self, hosts):
        return ",".join(host.pool for host in hosts)

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
        done = fargpu("run", "-n", "5", "--hosts", "2", "--", "true", pool=self.pool(hosts))
        self.assertEqual(done.code, 75, done.err)
        self.assertIn("no 2 hosts of the pool have 5 GPUs free together (4 GPUs of all hosts that answer)", done.err)
        self.assertFalse(any(host.status()["leases"] for host in hosts))

    # --- work --------------------------------------------------------------------------------------------------------

    def test_work_across_hosts(self):
        for transport in ("tcp", "auto"):
            with self.subTest(transport=transport):
                program = self.program(self.hosts(), "work", env={"FARGPU_TRANSPORT": transport})
                code = program.wait(seconds=200)
                self.assertEqual((code, program.out.text().strip()), (0, "fine"), program.err.text())

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
