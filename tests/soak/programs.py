"""The programs of a soak: such as are over at once, and such as live for minutes."""

import signal
import subprocess
import time
from pathlib import Path

from rig import Client, paths
from rig.process import environment
from rig.proxy import Proxy

from host import numbers

MIB = 1 << 20
END_WITHIN = 180  # seconds in which a program, or a call of it, must have ended, whatever happened to it
WORK = ("init", "context", "load", "alloc a 1048576", "write a 7", "launch a", "alloc b 3000000", "write b 9",
        "check b", "free a", "check b", "sync")
WORK_SAYS = ["SUCCESS same" if command.startswith("check") else "SUCCESS" for command in WORK]


class Wrong(Exception):
    """A program did what it should not, or did not what it should."""


class Program:
    """One that runs. `happened` says what was done to it. Cuts are not meant: no program may notice one."""

    def __init__(self, host, relayed, **more):
        self.relay = Proxy(host) if relayed else None
        self.environment = {"FARGPU_POOL": self.relay.pool if relayed else host.pool, "FARGPU_LOG": "debug",
                            "FARGPU_TRANSPORT": "tcp" if relayed else "auto", **more}
        self.happened = None
        self.cuts = 0
        self.settled = False  # it has a session, and goes on having it
        self.grown = {}

    def judge(self, code, right, said):
        if not self.happened and not (code == 0 and right):
            raise Wrong(f"ended with {code}: {said}")
        # A program of the runtime that does not look at errors may abort by itself; none may crash in the client.
        if code < 0 and not (self.happened == "killed" and code == -signal.SIGKILL):
            raise Wrong(f"ended by signal {-code}: {said}")

    def close(self):
        if self.relay:
            self.relay.close()


class Short(Program):
    """One that does what it does and ends."""

    def __init__(self, host, chance):
        command, self.text, self.right, relayed = chance.choice(SHORT)
        super().__init__(host, relayed and chance.random() < 0.6)
        self.name = " ".join(Path(word).name for word in command)
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace",
                                        env=environment({**self.environment, "LD_LIBRARY_PATH": paths.LIBRARIES}))
        self.pid, self.kill = self.process.pid, self.process.kill
        self.lasts = 0.5

    def run(self):
        try:
            out, err = self.process.communicate(self.text, timeout=END_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Wrong("did not end: {}{}".format(*self.process.communicate())) from None
        self.judge(self.process.returncode, self.right(out), out + err)


def short_programs():
    """Their commands, what they are told, whether what they say is right, and whether they may be cut."""
    found = [([paths.PROGRAMS / "commanded"], "\n".join(WORK + ("exit 0", "")),
              lambda out: out.splitlines() == WORK_SAYS, True)]
    found += [([paths.BUILD / "examples" / name], "", lambda out: "PASSED" in out, True)
              for name in ("vector_add_driver", "vector_add_runtime", "graph")]
    found += [([paths.KERNEL_PROGRAMS / name, case], "", lambda out: True, True)
              for name, case in (("kernels_warp", "votes"), ("kernels_stream", "order"))]
    # Two processes, each with a session, that share memory of a device. One looks whether the other's end is known
    # soon, which it is not where the other ends while it is cut.
    found += [([paths.KERNEL_PROGRAMS / "sharing"], "", lambda out: "shared" in out, False)]
    return [program for program in found if program[0][0].exists()]


SHORT = short_programs()


class Long(Program):
    """One that lives for a while, and looks again and again whether its memory holds what was put there."""

    # Most of what it holds is of one value, so that it goes compressed, where that is allowed.
    SMALL, LARGE = MIB // 2, 8 * MIB
    STEPS = (("check a",), ("check b",), ("scatter a {}",), ("write b {}",), (f"rewrite a {1 << 16} 8",),
             ("launch a", "sync"), (f"alloc c {MIB}", "write c {}", "check c", "free c"), ("free_bytes",))
    WEIGHTS = (5, 1, 2, 1, 2, 3, 2, 2)

    def __init__(self, host, chance, pause, until):
        more = {"FARGPU_LANES": "3"} if chance.random() < 0.5 else {}
        more.update({"FARGPU_MEM": "24MiB", "FARGPU_GPUS": "1"} if chance.random() < 0.3 else {})
        more.update({"FARGPU_COMPRESS": "off"} if chance.random() < 0.2 else {})
        super().__init__(host, chance.random() < 0.75, **more)
        self.name = f"a long-lived program ({self.environment})"
        self.host, self.chance, self.pause, self.until = host, chance, pause, until
        self.client = Client(self.environment["FARGPU_POOL"], env=self.environment)
        self.pid, self.kill = self.client.pid, self.client.process.kill
        self.lasts = max(0.5, until - time.monotonic())

    def must(self, *commands):
        for command in commands:
            begin = time.monotonic()
            answer = self.client.ask(command.format(self.chance.randrange(1, 250)), END_WITHIN)
            wanted = "SUCCESS same" if command.startswith("check") else "SUCCESS"
            if answer != wanted and not (command == "free_bytes" and answer.startswith("SUCCESS ")):
                raise Wrong(f"'{command}' gave {answer} after {time.monotonic() - begin:.1f} s")

    def live(self):
        self.must("init", "context", "load", f"alloc a {self.SMALL}", f"alloc b {self.LARGE}", "scatter a {}",
                  "write b {}")
        for step in 2 * self.STEPS:
            self.must(*step)
        self.settled = True
        begin = self.numbers()
        while time.monotonic() < self.until:
            time.sleep(self.chance.uniform(0, 2 * self.pause))
            self.must(*self.chance.choices(self.STEPS, self.WEIGHTS)[0])
        self.must("check a", "check b", "sync")
        self.settled = False
        self.grown = {what: number - begin[what] for what, number in self.numbers().items()}

    def numbers(self):
        """Of its process, and of its worker's."""
        both = {"program": self.pid, "worker": self.host.session_of(self.pid)["worker"]}
        return {f"{what} of the {whose}": number for whose, pid in both.items()
                for what, number in numbers(pid).items()}

    def run(self):
        said = ""
        try:
            self.live()
        except (Wrong, OSError, AssertionError) as error:  # of the rig: it has ended, or does not answer
            said = str(error)
            if not self.happened or "different" in said:
                raise Wrong(f"{said}; {self.client.errors()}") from None
        self.settled = False
        try:
            self.client.begin("exit 0")
        except OSError:
            pass  # it has ended
        try:
            code = self.client.process.wait(END_WITHIN)
        except AssertionError as error:
            raise Wrong(f"{said}; {error}") from None
        self.judge(code, True, f"{said}; {self.client.errors()}")

    def close(self):
        self.client.close()
        super().close()
