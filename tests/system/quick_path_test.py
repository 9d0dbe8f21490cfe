"""The way most people meet fargpu: `fargpu run`, or the library in LD_LIBRARY_PATH."""

import os
import stat
import tempfile
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, fake_broker, paths
from rig.process import run

DRIVER_PROGRAM = paths.BUILD / "examples" / "vector_add_driver"
RUNTIME_PROGRAM = paths.PROGRAMS / "runtime"


class Programs(SystemTest):
    def test_driver_api_through_run(self):
        broker = self.broker()
        client = self.client(broker, "init", "context", "load", "alloc a 4096", "write a 7", "launch a", "sync",
                             through_run=True)
        # The kernel fills the first 64 bytes with something else.
        self.assertEqual(client.ask("check a"), "SUCCESS different")
        self.assertEqual(client.finish(), 0)
        self.assertEqual(client.errors(), "")

    def test_driver_api_by_library_path(self):
        broker = self.broker()
        client = self.client(broker, "init", "context", "alloc a 4096", "write a 7")
        self.assert_lives(client)
        self.assertEqual(client.finish(), 0)

    def test_runtime_api_both_ways(self):
        broker = self.broker()
        preload = {"LD_PRELOAD": paths.SANITIZER_RUNTIME or None}
        for done in (fargpu("run", "--", RUNTIME_PROGRAM, pool=broker.pool, env=preload),
                     run([RUNTIME_PROGRAM], env={"FARGPU_POOL": broker.pool, "LD_LIBRARY_PATH": paths.LIBRARIES,
                                                 **preload})):
            self.assertEqual((done.code, done.out, done.err), (0, "2 devices, copied 1048576 numbers\n", ""))

    def test_examples_reach_their_kernels(self):
        # Kernels do nothing here, so the example itself notices that its sums are missing: everything before went well.
        done = fargpu("run", "--", DRIVER_PROGRAM, pool=self.broker().pool)
        self.assertEqual((done.code, done.err), (1, "element 0 is 0 instead of 7\n"))


class RunsEnvironment(SystemTest):
    def variables(self, *arguments, **more):
        done = fargpu("run", *arguments, "--", "sh", "-c", "sh -c env", **more)
        self.assertEqual(done.code, 0, done.err)
        return dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)

    def test_for_the_whole_process_tree(self):
        pool = self.broker().pool
        variables = self.variables(pool=pool, env={"LD_LIBRARY_PATH": "/somewhere/lib"})
        self.assertEqual(variables["LD_LIBRARY_PATH"], f"{paths.LIBRARIES}:/somewhere/lib")
        self.assertEqual(variables["TRITON_LIBCUDA_PATH"], str(paths.LIBRARIES))
        self.assertEqual(variables["NCCL_P2P_LEVEL"], "SYS")
        self.assertEqual(variables["FARGPU_POOL"], pool)

    def test_an_empty_search_path_is_not_the_current_folder(self):
        variables = self.variables(pool=self.broker().pool, env={"LD_LIBRARY_PATH": ""})
        self.assertEqual(variables["LD_LIBRARY_PATH"], str(paths.LIBRARIES))

    def test_pool_option_before_variable(self):
        pool = self.broker().pool
        self.assertEqual(self.variables("--pool", pool, pool="127.0.0.1:1")["FARGPU_POOL"], pool)


class ExitCodes(SystemTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from rig import Broker
        cls.host = Broker()
        cls.addClassCleanup(cls.host.close)

    def run_code(self, *program, options=(), pool=None, env=None):
        done = fargpu("run", *options, "--", *program, pool=pool or self.host.pool, env=env)
        return done.code, done.err

    def test_the_programs_own(self):
        self.assertEqual(self.run_code("sh", "-c", "exit 42"), (42, ""))

    def test_death_by_signal(self):
        self.assertEqual(self.run_code("sh", "-c", "kill -SEGV $$"), (-11, ""))

    def test_death_by_signal_as_shells_tell_it(self):
        done = run(["sh", "-c", f"{paths.FARGPU} run -- sh -c 'kill -9 $$'; exit $?"],
                   env={"FARGPU_POOL": self.host.pool})
        self.assertEqual(done.code, 128 + 9)

    def test_arguments_arrive_as_they_are(self):
        done = fargpu("run", "--", "printf", "%s,", "--pool", "-h", "a b", "", pool=self.host.pool)
        self.assertEqual((done.code, done.out), (0, "--pool,-h,a b,,"))

    def test_not_found(self):
        code, said = self.run_code("no-such-program")
        self.assertEqual(code, 127)
        self.assertIn("no-such-program", said)

    def test_not_executable(self):
        with tempfile.NamedTemporaryFile() as file:
            code, said = self.run_code(file.name)
            self.assertEqual(code, 126)
            self.assertIn("Permission denied", said)
            self.assertEqual(self.run_code(file.name + "/below")[0], 126)
            self.assertEqual(self.run_code("/")[0], 126)

    def test_own_errors(self):
        for pool, words in (("", "set FARGPU_POOL="), ("none", "no GPU is to be used"),
                            ("host:port", "'port' is no port"),
                            ("127.0.0.1:1", "is fargpud running there"), ("no-such-host.invalid", "check FARGPU_POOL")):
            with self.subTest(pool=pool):
                done = fargpu("run", "--", "true", pool=pool)
                self.assertEqual(done.code, 125)
                self.assertIn(words, done.err)
                self.assertEqual(done.err.count("\n"), 1)
        self.assertEqual(fargpu("run", pool=self.host.pool).code, 125)
        self.assertEqual(fargpu("frobnicate").code, 125)

    def test_no_check_starts_the_program_anyway(self):
        self.assertEqual(self.run_code("sh", "-c", "exit 3", options=["--no-check"], pool="127.0.0.1:1"), (3, ""))

    def test_denied(self):
        with fake_broker(hello='(helloAnswer = (failure = (reason = denied, text = "no such tenant")))') as pool:
            code, said = self.run_code("true", pool=pool)
        self.assertEqual(code, 126)
        self.assertIn("no such tenant", said)

    def test_no_capacity(self):
        host = self.broker("--sessions-max", "1")
        self.client(host, "init")
        code, said = self.run_code("true", pool=host.pool)
        self.assertEqual(code, 75)
        self.assertIn("try later", said)
        # One host that is full does not matter while another has room.
        self.assertEqual(self.run_code("true", pool=f"{host.pool},{self.host.pool}"), (0, ""))


if __name__ == "__main__":
    unittest.main()
