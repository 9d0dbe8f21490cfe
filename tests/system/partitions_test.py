"""Multiprocessors of their own for a tenant's leases (sm_partitions). No MPS daemon is there, but its pipe: neither
driver asks for more."""

import os
import signal
import tempfile
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths
from rig.broker import settings_file


def mps_folder(test):
    """What an MPS daemon is known by."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    os.mkfifo(Path(folder.name, "control"))
    return folder.name


class Partitions(SystemTest):
    driver = paths.FAKE_DRIVER  # with 20 multiprocessors: two groups of eight and a rest
    groups = 2

    def setUp(self):
        self.mps = mps_folder(self)

    def host(self, *options, **more):
        with settings_file(f'[tenant.default]\nmps = "{self.mps}"\nsm_partitions = true\n') as file:
            return self.broker(*options, config=file, driver=self.driver, **more)

    def groups_of(self, host, client):
        """The groups of the first device that a client's session has, by its worker."""
        session = host.log("session started", pid=client.pid)
        told = host.log("multiprocessors", session=session["session"])["groups"]
        worker = Path("/proc") / session["worker"]
        arguments = (worker / "cmdline").read_bytes().split(b"\0")
        self.assertEqual(arguments[arguments.index(b"--sm-groups") + 1].decode(), told)
        environment = dict(variable.split(b"=", 1)
                           for variable in (worker / "environ").read_bytes().split(b"\0") if variable)
        self.assertEqual(environment[b"CUDA_MPS_PIPE_DIRECTORY"], self.mps.encode())
        self.assertNotIn(b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", environment)  # with it there are no groups
        return [int(group) for group in told.split(":")[0].split(",")]

    def test_leases_have_parts_of_their_own_and_give_them_back(self):
        host = self.host()
        share = {"FARGPU_COMPUTE": f"{100 // self.groups * 3 // 5}%"}  # one group, and some are left of 100%
        clients = [self.client(host, "init", "context", env=share) for _ in range(self.groups)]
        for client in clients:
            self.assertEqual(client.ask("multiprocessors 0"), "SUCCESS 8 8 8")
        parts = [self.groups_of(host, client) for client in clients]
        self.assertEqual(sorted(sum(parts, [])), list(range(self.groups)))
        late = self.client(host, env=share)
        self.assertEqual(late.ask("init"), "SYSTEM_NOT_READY")
        late.says(f"0 of {self.groups} groups of 8 multiprocessors")
        waits = self.client(host, env={**share, "FARGPU_WAIT": "60s"})
        place = host.place()
        waits.begin("init")
        host.log("lease waits", place)
        self.assertEqual(clients[1].finish(), 0)
        self.assertEqual(waits.answer(), "SUCCESS")
        self.assertEqual(self.groups_of(host, waits), parts[1])

    def test_a_part_is_all_that_a_program_has(self):
        host = self.host()
        client = self.client(host, "init", env={"FARGPU_COMPUTE": "50%"})
        size = 8 * (self.groups // 2)
        self.assertEqual(client.ask("multiprocessors 0"), f"SUCCESS {size} {size}")
        client.must("context")
        self.assertEqual(client.ask("multiprocessors 0"), f"SUCCESS {size} {size} {size}")
        self.assertEqual(client.ask("create"), "NOT_SUPPORTED")
        client.says("sm_partitions of its tenant")
        self.assertEqual(client.ask(f"green {size}"), f"SUCCESS {size}")
        self.assertIn("INVALID_", client.ask(f"green {size + 8}"))
        for command in ("load", "alloc a 4096", "write a 5", "launch a", "sync"):
            client.must(command)
        client.must("reset")
        for command in ("context", "load", "alloc a 4096", "launch a", "write a 5"):
            client.must(command)
        self.assert_lives(client)
        self.assertEqual(client.ask("multiprocessors 0"), f"SUCCESS {size} {size} {size}")

    def test_a_part_comes_back_however_its_session_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            broken, script = Path(folder, "broken"), Path(folder, "worker")
            script.write_text(f'#!/bin/sh\n[ ! -e {broken} ] || exit 1\nexec {paths.FARGPUD.parent}/fargpu-worker '
                              '"$@"\n', encoding="utf-8")
            script.chmod(0o755)
            host = self.host("--worker", script)
            everything = {"FARGPU_COMPUTE": "100%", "FARGPU_WAIT": "60s"}
            client = self.client(host, "init", "context", env=everything)
            os.kill(self.worker_of(host, client), signal.SIGKILL)
            broken.touch()
            # its worker does not start
            self.assertEqual(self.client(host, env=everything).ask("init"), "SYSTEM_NOT_READY")
            broken.unlink()
            client = self.client(host, "init", "context", env=everything)
            self.assertEqual(self.groups_of(host, client), list(range(self.groups)))
            client.process.kill()
            again = self.client(host, "init", "context", env=everything)
            self.assertEqual(self.groups_of(host, again), list(range(self.groups)))

    def test_processes_of_a_job_have_one_part(self):
        host = self.host()
        one, other = (self.client(host, "init", "context", env={"FARGPU_COMPUTE": "50%", "FARGPU_JOB": "5d" * 16})
                      for _ in range(2))
        self.assertEqual(self.groups_of(host, one), self.groups_of(host, other))

    def test_who_asks_for_no_percentage(self):
        host = self.host()
        client = self.client(host, env={"FARGPU_WAIT": "60s"})
        self.assertEqual(client.ask("init"), "NOT_PERMITTED")
        client.says("ask for one, by -c or FARGPU_COMPUTE")
        self.assertEqual(fargpu("run", "--", "true", pool=host.pool).code, 126)


@unittest.skipIf(paths.SANITIZED, "it needs the software GPU")
class PartitionsOfTheSoftwareGpu(Partitions):
    driver = paths.SOFTWARE_GPU
    groups = 4

    def host(self, *options, **more):
        return super().host(*options, env={"FARGPU_SOFTGPU_SMS": "36"}, **more)

    def test_a_worker_under_a_clients_variables_says_nothing_of_the_host(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "worker")
            script.write_text(f'#!/bin/sh\n[ -z "$CUDA_DEVICE_MAX_CONNECTIONS" ] || export FARGPU_SOFTGPU_SMS=20\n'
                              f'exec {paths.FARGPUD.parent}/fargpu-worker "$@"\n', encoding="utf-8")
            script.chmod(0o755)
            host = self.host("--worker", script)
            one = self.client(host, "init", "context",
                              env={"FARGPU_COMPUTE": "25%", "CUDA_DEVICE_MAX_CONNECTIONS": "1"})
            self.assertEqual(self.groups_of(host, one), [0])
            other = self.client(host, "init", "context", env={"FARGPU_COMPUTE": "50%"})
            self.assertEqual(self.groups_of(host, other), [1, 2])

    def test_programs_of_the_runtime(self):
        host = self.host()
        program = paths.PROGRAMS / "runtime"
        done = fargpu("run", "-c", "25%", "--", program, pool=host.pool)
        self.assertEqual(done.code, 0, done.err)


class Settings(SystemTest):
    def test_without_a_daemon_nobody_runs_without_what_it_isolates(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with settings_file(f'[tenant.default]\nmps = "{folder.name}"\nsm_partitions = true\n') as file:
            host = self.broker("--policy", "fair", config=file)
            fix = f"CUDA_MPS_PIPE_DIRECTORY={folder.name} nvidia-cuda-mps-control -d"
            self.assertIn(fix, host.log("no MPS daemon", tenant="default")["reason"])
            self.assertIn('policy = "free"', host.log("partitions by turns", tenant="default")["meaning"])
            client = self.client(host, env={"FARGPU_COMPUTE": "50%"})
            self.assertEqual(client.ask("init"), "SYSTEM_NOT_READY")
            client.says(fix)
            place = host.place()
            host.process.signal(signal.SIGHUP)
            host.log("no MPS daemon", place, tenant="default")
            os.mkfifo(Path(folder.name, "control"))
            self.client(host, "init", env={"FARGPU_COMPUTE": "50%"})  # without a reload
            place = host.place()
            host.process.signal(signal.SIGHUP)
            host.log("partitions by turns", place)
            self.assertEqual(len(host.logged("no MPS daemon", place)), 0)

    def test_without_mps_there_are_none(self):
        with settings_file("[tenant.default]\nsm_partitions = true\n") as file:
            process = self.start([paths.FARGPUD, "--config", file])
            self.assertEqual(process.wait(), 2)
            self.assertIn("sm_partitions of tenant 'default' is true; give its `mps` too", process.err.text())


if __name__ == "__main__":
    unittest.main()
