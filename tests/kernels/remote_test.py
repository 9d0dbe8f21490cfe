"""Every case of the kernel programs as a process of its own, through client library, broker and worker, on the software
GPU."""

import json
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))

from rig import Broker, Process, SystemTest, paths, wait_gone, wait_until  # noqa: E402
from rig.process import run  # noqa: E402

SOFTWARE_GPU = paths.BUILD / "server" / "softgpu" / "libfargpu-softgpu.so"
PROGRAMS = paths.BUILD / "tests" / "kernels"
CASE_SECONDS = 120
# Of cases in which the way to the worker matters.
TRANSPORTS = {"polled_events": ("tcp", "shm")}


def environment(broker):
    return {"FARGPU_POOL": broker.pool, "LD_LIBRARY_PATH": paths.LIBRARIES}


class Cases(unittest.TestCase):
    """The cases of one program; they share a broker."""

    program = None

    @classmethod
    def setUpClass(cls):
        cls.broker = Broker(driver=SOFTWARE_GPU)
        cls.addClassCleanup(cls.broker.close)

    def run_case(self, case):
        # With bulk lanes, of which a machine with few processors has none.
        lanes = {"FARGPU_LANES": "4"} if self.program == "copies" else {}
        for transport in TRANSPORTS.get(case, ("auto",)):
            done = run([PROGRAMS / f"kernels_{self.program}", case], seconds=CASE_SECONDS,
                       env={**environment(self.broker), **lanes, "FARGPU_TRANSPORT": transport})
            said = done.out + done.err + ("died by a signal" if done.code < 0 else "")
            self.assertEqual(done.code, 0, f"{transport}: {said}")


def class_of(program, cases):
    def method(case):
        return lambda self: self.run_case(case)

    return type(program, (Cases,), {"program": program, **{f"test_{case}": method(case) for case in cases}})


for source in sorted(HERE.glob("kernels_*.cu")):
    name = source.stem.removeprefix("kernels_")
    globals()[name] = class_of(name, re.findall(r"^CASE\w*\((\w+)\)", source.read_text(), re.MULTILINE))
del Cases  # it has none of its own


class Evicted(SystemTest):
    """Programs whose device memory goes to the host's memory after each call, and comes back at the next one, compute
    the same."""

    def compute(self, program, transport):
        cases = re.findall(r"^CASE\w*\((\w+)\)", (HERE / f"kernels_{program}.cu").read_text(), re.MULTILINE)
        broker = self.broker("--evicted-bytes-max", "8GiB", driver=SOFTWARE_GPU, env={"FARGPU_TEST_EVICT_CALLS": "1"})
        for case in cases:
            with self.subTest(case):
                # Each call waits for what left to come back, on a busy machine for a while.
                done = run([PROGRAMS / f"kernels_{program}", case], seconds=3 * CASE_SECONDS,
                           env={**environment(broker), "FARGPU_LANES": "4", "FARGPU_TRANSPORT": transport})
                self.assertEqual(done.code, 0, done.out + done.err)
        self.assertGreater(len(broker.logged("session returned")), len(cases))


def add_evicted(program, transport):
    setattr(Evicted, f"test_{program}_by_{transport}", lambda self: self.compute(program, transport))


for program_ in ("address", "async", "copies", "graphs", "memory"):
    add_evicted(program_, "tcp")
add_evicted("copies", "shm")


class TwoDevices(SystemTest):
    """What needs a second device."""

    def test_peers(self):
        broker = self.broker(driver=SOFTWARE_GPU, env={"FARGPU_SOFTGPU_DEVICES": "2"})
        for case in ("two_devices", "no_access_to_peers", "managed_for_both", "managed_variable_for_both",
                     "managed_variable_outlives_context", "peer_copy_waits", "launches_together", "grids_meet"):
            with self.subTest(case):
                done = run([PROGRAMS / "kernels_address", case], env=environment(broker), seconds=CASE_SECONDS)
                self.assertEqual(done.code, 0, done.out + done.err)
                self.assertNotIn("skipped", done.out)


class SlowLooks(SystemTest):
    """A driver is slow to answer at times: what is complete is delivered before the program learns of it."""

    def deliver(self, transport):
        cases = re.findall(r"^CASE\w*\((\w+)\)", (HERE / "kernels_delivered.cu").read_text(), re.MULTILINE)
        broker = self.broker(driver=PROGRAMS / "libkernels_slow_looks.so")
        for case in cases:
            with self.subTest(case):
                done = run([PROGRAMS / "kernels_delivered", case], seconds=CASE_SECONDS,
                           env={**environment(broker), "FARGPU_LANES": "4", "FARGPU_TRANSPORT": transport})
                self.assertEqual(done.code, 0, done.out + done.err)

    def test_by_tcp(self):
        self.deliver("tcp")

    def test_by_shared_memory(self):
        self.deliver("shm")


class RandomWork(SystemTest):
    """kernels_random, with more than one seed. More of them: KERNELS_SEEDS."""

    def compute(self, first, transport, driver=SOFTWARE_GPU, broker=None, **variables):
        broker = broker or self.broker(driver=driver)
        for seed in range(first, first + int(os.environ.get("KERNELS_SEEDS", "6"))):
            with self.subTest(seed=seed):
                done = run([PROGRAMS / "kernels_random", "work"], seconds=CASE_SECONDS,
                           env={**environment(broker), "FARGPU_LANES": "4", "FARGPU_TRANSPORT": transport,
                                "TEST_SEED": str(seed), **variables})
                self.assertEqual(done.code, 0, done.out + done.err)

    def test_by_tcp(self):
        self.compute(124, "tcp")

    def test_by_shared_memory(self):
        self.compute(1000, "shm")

    def test_by_threads(self):
        self.compute(213, "tcp", KERNELS_THREADS="3")

    def test_evicted(self):
        broker = self.broker("--evicted-bytes-max", "8GiB", driver=SOFTWARE_GPU, env={"FARGPU_TEST_EVICT_CALLS": "1"})
        self.compute(704, "tcp", broker=broker, KERNELS_STEPS="100")
        self.assertGreater(len(broker.logged("session returned")), 6)

    def test_with_slow_looks(self):
        self.compute(300, "tcp", PROGRAMS / "libkernels_slow_looks.so", KERNELS_STEPS="600")


class SharedMemory(SystemTest):
    """What only a host on the same machine can do."""

    def test_a_long_conversation(self):
        """A kernel and the program that read what the other writes, again and again, in the time of some accesses to
        memory each."""
        broker = self.broker(driver=SOFTWARE_GPU)
        done = run([PROGRAMS / "kernels_mapped", "conversation"], seconds=CASE_SECONDS,
                   env={**environment(broker), "FARGPU_TRANSPORT": "shm", "KERNELS_ROUNDS": "3000"})
        self.assertEqual(done.code, 0, done.out + done.err)


class Sharing(SystemTest):
    """Processes that hand memory and events to each other."""

    def test_memory_of_another_process(self):
        broker = self.broker(driver=SOFTWARE_GPU)
        done = run([PROGRAMS / "sharing"], env=environment(broker), seconds=CASE_SECONDS)
        self.assertEqual((done.code, done.out.splitlines()[-1:]), (0, ["shared"]), done.out + done.err)

    def test_events_of_another_process(self):
        broker = self.broker(driver=SOFTWARE_GPU)
        done = run([PROGRAMS / "shared_events"], env=environment(broker), seconds=CASE_SECONDS)
        self.assertEqual((done.code, done.out.splitlines()[-1:]), (0, ["in order"]), done.out + done.err)


class FirstLaunches(SystemTest):
    """What nobody waits for, as attributes show that it is allowed."""

    def round_trips(self, program):
        """Of each launch, the first one first."""
        broker = self.broker(driver=SOFTWARE_GPU)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            done = run([program], env={**environment(broker), "FARGPU_TRACE": trace}, seconds=CASE_SECONDS)
            self.assertEqual(done.code, 0, done.out + done.err)
            events = json.loads(trace.read_text())
        return [event["args"]["round_trips"] for event in events if event["name"].startswith("cuLaunchKernel")]

    def test_of_a_modules_function(self):
        self.assertEqual(self.round_trips(paths.BUILD / "examples" / "vector_add_driver"), [0])

    def test_of_a_librarys_kernel(self):
        self.assertEqual(self.round_trips(paths.BUILD / "examples" / "vector_add_runtime"), [0])


class OlderNames(SystemTest):
    """Calls as programs of older toolkits make them."""

    def test_the_same(self):
        broker = self.broker(driver=SOFTWARE_GPU)
        done = run([PROGRAMS / "older_names"], env=environment(broker), seconds=CASE_SECONDS)
        self.assertEqual((done.code, done.out.splitlines()[-1:]), (0, ["the same"]), done.out + done.err)


class Endless(SystemTest):
    """A kernel that does not end by itself."""

    def test_ends_with_its_client(self):
        broker = self.broker(driver=SOFTWARE_GPU)
        client = self.start([PROGRAMS / "endless", PROGRAMS / "kernels_fault.fatbin"], env=environment(broker))
        client.out.find(lambda line: line == "running")
        worker = self.worker_of(broker, client)
        wait_until(lambda: broker.status()["devices"][0]["used_bytes"] >= 256 << 20, "memory in use")
        client.kill()
        wait_gone(worker, seconds=1)
        wait_until(lambda: not broker.status()["sessions"], "the end of the session")
        self.assertEqual(broker.status()["devices"][0]["used_bytes"], 0)


class Memories(SystemTest):
    """Memory that program and kernels use at the same time: with two they take turns, or the program is told."""

    CASES = ("both_add", "both_change", "queue", "every_other_word")
    # Cases whose kernels have atomics or fences of the whole system, and the memory that these use.
    WARNED = {"both_add": "managed", "both_change": "managed", "queue": "managed"}
    WARNING = re.compile(r"^fargpu: warning: kernel (add_to_all|append|both) has atomics or fences of the whole ",
                         re.MULTILINE)

    def test_on_the_driver(self):
        for case in self.CASES:
            done = run([PROGRAMS / "kernels_shared", case], seconds=CASE_SECONDS,
                       env={"LD_LIBRARY_PATH": paths.BUILD / "tests/softgpu/libcuda", "KERNELS_MEMORIES": "one"})
            self.assertEqual(done.code, 0, f"{case}: {done.out}{done.err}")

    def test_through_fargpu(self):
        broker = self.broker(driver=SOFTWARE_GPU)
        for transport, memories in (("tcp", "two"), ("shm", "pinned")):
            for case in self.CASES:
                done = run([PROGRAMS / "kernels_shared", case], seconds=CASE_SECONDS,
                           env={**environment(broker), "FARGPU_TRANSPORT": transport, "KERNELS_MEMORIES": memories})
                said = f"{case} by {transport}: {done.out}{done.err}"
                self.assertEqual(done.code, 0, said)
                copied = transport == "tcp" or self.WARNED.get(case) == "managed"
                self.assertEqual(len(self.WARNING.findall(done.err)), int(case in self.WARNED and copied), said)


class Words(SystemTest):
    """What the software GPU says to the person who runs a program."""

    def test_code_without_ptx(self):
        broker = self.broker(driver=SOFTWARE_GPU)
        done = run([PROGRAMS / "endless", PROGRAMS / "no_ptx.cubin"], env=environment(broker), seconds=CASE_SECONDS)
        self.assertEqual(done.code, 1)
        said, failed = done.err.splitlines()
        self.assertRegex(said, "^fargpu-softgpu: the image has no PTX .*compute_90")
        self.assertEqual(failed, "cuModuleLoad(&module, arguments[1]) gives 209")

    def test_a_kernel_that_takes_long(self):
        client = self.start([PROGRAMS / "endless", PROGRAMS / "kernels_fault.fatbin"],
                            env={"LD_LIBRARY_PATH": paths.BUILD / "tests/softgpu/libcuda",
                                 "FARGPU_SOFTGPU_PATIENCE": "1"})
        client.err.find(lambda line: line.startswith("fargpu-softgpu: kernel endless has run for 1 s; 0 of its 64 "
                                                     "blocks are done. "))
        client.err.find(lambda line: "has run for 4 s" in line)


if __name__ == "__main__":
    unittest.main()
