"""The processes of a benchmark: brokers, proxies, programs that take turns; and what they cost."""

import collections
import contextlib
import dataclasses
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

from goals import HERE, OLD

sys.path.append(os.path.join(os.path.dirname(HERE), "tests", "gpu"))
from driver import WithoutDriver, driver_library  # noqa: E402


class Failed(Exception):
    """Something could not be measured; the text says why."""


NEW = ""  # the build that is measured, beside OLD, one that it is compared with


def of_build(name, build):
    return f"{name}.{build}" if build else name


@dataclasses.dataclass(frozen=True)
class Transport:
    """A way from the client to the server of a build."""

    name: str  # as goals.toml names it; of the old build with that word before it
    rtt: float  # in seconds, by configuration; 0 for none added
    pool: str  # of a broker; by a Unix socket for shared memory
    sockets: tuple = ()  # host and port of plain sockets over the same way
    build: str = NEW
    broker: str = "default"  # the name of the broker there

    @property
    def way(self):
        return self.name.removeprefix(f"{self.build} ")


FAST_LINE = 2000  # MB/s, from which on a proxy's one thread is too slow


class Asked:
    """A program that does what it is told, line by line (asked.h)."""

    def __init__(self, command, env, log):
        self.log = log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                            env=env, start_new_session=True)
        self.rest = b""

    def tell(self, case, **values):
        line = " ".join([case, *(f"{key}={value}" for key, value in values.items())])
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"'{line}' cannot be asked: {self.last_words()}") from None

    def line(self, timeout=120):
        """The next line."""
        end = time.monotonic() + timeout
        while True:
            line, newline, after = self.rest.partition(b"\n")
            if newline:
                self.rest = after
                return line
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failed(f"no answer within {timeout} s: {self.last_words()}")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise Failed(f"it ended with {self.process.wait()}: {self.last_words()}")
            self.rest += more

    def answer(self, timeout=120):
        """The next line of JSON; other lines, which libraries may print, are skipped."""
        while True:
            line = self.line(timeout)
            if line.startswith(b"{"):
                found = json.loads(line)
                if "error" in found:
                    raise Failed(found["error"])
                return found

    def ask(self, case, timeout=120, **values):
        self.tell(case, **values)
        return self.answer(timeout)

    def last_words(self):
        with open(self.log, errors="replace") as log:
            return log.read()[-500:].strip() or "it said nothing"

    def end(self, timeout=20):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()


def cpu_of(pid):
    """CPU seconds of a process so far; 0 once it has gone."""
    total = 0.0
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0
    for task in tasks:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                total += int(file.read().split()[0]) / 1e9
    if total > 0:
        return total
    with contextlib.suppress(OSError, ValueError, IndexError):  # a kernel that keeps no schedstat
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def wakeups_of(pid):
    """How often the threads of a process have gone to sleep so far, which is how often they were woken: {their name:
    how often}."""
    found = collections.Counter()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status") as file:
                text = file.read()
            switches = int(re.search(r"(?m)^voluntary_ctxt_switches:\s*(\d+)", text)[1])
            found[re.search(r"(?m)^Name:\s*(.*)", text)[1]] += switches
    return found


def connections_of(pid, port):
    """How many TCP connections a process has to a port."""
    mine = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                mine.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        with open(f"/proc/{pid}/net/tcp") as file:
            fields = [line.split() for line in file.readlines()[1:]]
        return sum(f"socket:[{one[9]}]" in mine and int(one[2].rpartition(":")[2], 16) == port for one in fields)
    return 0


STREAMS_MOST = 8  # connections that a session divides large copies among when nothing is set


def lanes_of(pid, pool):
    """How many plain sockets a session is compared with: as many as it has bulk lanes, which are open once it has
    copied, or without any as many as it may open by itself. And its connections."""
    connections = connections_of(pid, int(pool.rpartition(":")[2]))
    return connections - 1 if connections > 1 else max(1, min(STREAMS_MOST, os.cpu_count() // 2)), connections


def children_of(pid):
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if name.isdigit():
                with open(f"/proc/{name}/stat") as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == pid:
                        found.append(int(name))
    return found


class Machine:
    """Everything that runs, ended by close()."""

    def __init__(self, stage, out, kinds=("tcp", "shm"), against=None):
        self.kinds = kinds
        self.stage, self.out = os.path.abspath(stage), os.path.abspath(out)
        # their programs' folders
        self.builds = {**({OLD: os.path.abspath(against)} if against else {}), NEW: self.stage}
        self.old_pools = set()  # where the old build's client goes
        self.ucx_transports = {}  # of UCX, that sessions at a pool go by
        self.bench = os.path.join(self.stage, "bench")
        os.makedirs(self.out, exist_ok=True)
        self.socket_folder = tempfile.TemporaryDirectory()  # paths of sockets are short
        self.driver = driver_library()
        # else there is nothing to hide
        self.without_driver = None if os.environ.get("FARGPU_TEST_DRIVER") else WithoutDriver(self.driver)
        self.running, self.brokers, self.counter = [], {}, itertools.count(1)
        self.logs = {}  # of brokers, by pool
        self.proxies = {}
        self.sockets = None

    def close(self):
        for process in reversed(self.running):
            process.stdin.close() if process.stdin else process.send_signal(signal.SIGINT)
        for process in reversed(self.running):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.socket_folder.cleanup()

    def log(self, label):
        return os.path.join(self.out, f"{next(self.counter):03}.{label}.log")

    # --- servers -----------------------------------------------------------------------------------------------------

    def broker(self, name="default", *options, build=NEW):
        """The pool of a build's broker with these options; one for each name."""
        if (name, build) not in self.brokers:
            process, log = self.start_broker(name, options, build)
            pool = "127.0.0.1:" + self.wait_for(process, log, r"listening .*address=127.0.0.1 port=(\d+)")
            self.brokers[name, build] = (process, pool)
            self.logs[pool] = log
            if build == OLD:
                self.old_pools |= {pool, self.socket(name, build)}
        return self.brokers[name, build][1]

    def start_broker(self, name, options, build=NEW, address="127.0.0.1:0"):
        """Its process and its log."""
        log = self.log(of_build(f"fargpud.{name}", build))
        with open(log, "w") as file:
            process = subprocess.Popen([os.path.join(self.builds[build], "bin", "fargpud"), "--driver", self.driver,
                                        "--listen", f"{address},{self.socket(name, build)}",
                                        "--image-folder", os.path.join(self.out, of_build("images", build)), *options],
                                       stdout=file, stderr=file,
                                       env=self.with_ucx(build) if "--rdma-transports" in options else None)
        self.running.append(process)
        return process, log

    def next_broker(self, name, signal_number, *options):
        """A broker of the new build is told a signal, by which it ends, and one of these options is started at its
        address."""
        process, pool = self.brokers[name, NEW]
        process.send_signal(signal_number)
        process.wait(60)
        process, self.logs[pool] = self.start_broker(name, options, address=pool)
        self.brokers[name, NEW] = (process, pool)

    def log_of(self, pool):
        """The log of the broker at this pool."""
        return self.logs[pool]

    def socket(self, name="default", build=NEW):
        """The pool of the same broker for sessions by shared memory."""
        return f"unix:{self.socket_folder.name}/{of_build(name, build)}.sock"

    def wait_for(self, process, log, pattern, timeout=60):
        end = time.monotonic() + timeout
        while True:
            with open(log) as file:
                text = file.read()
            match = re.search(pattern, text)
            if match:
                return match[1]
            if process.poll() is not None or time.monotonic() > end:
                raise Failed(f"{os.path.basename(process.args[0])} did not start: {text[-500:]}")
            time.sleep(0.02)

    def says_port(self, label, command):
        log = self.log(label)
        with open(log, "w") as file:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file)
        self.running.append(process)
        return self.wait_for(process, log, r"port (\d+)")

    def socket_server(self):
        if self.sockets is None:
            self.sockets = "127.0.0.1:" + self.says_port("sockets", [os.path.join(self.bench, "sockets"), "serve"])
        return self.sockets

    def proxy(self, to, rtt, rate=None):
        """Where a proxy of that round trip time (seconds) listens."""
        key = (to, rtt, rate)
        if key not in self.proxies:
            command = [os.path.join(self.bench, "proxy"), "--to", to, "--delay-us", str(round(rtt / 2 * 1e6))]
            if rate:
                command += ["--megabytes-per-second", str(rate)]
            if not rate or rate >= FAST_LINE:
                command += ["--threads", "4"]
            self.proxies[key] = "127.0.0.1:" + self.says_port("proxy", command)
            if to in self.old_pools:
                self.old_pools.add(self.proxies[key])
        return self.proxies[key]

    def ucx(self, by, broker="default", options=(), build=NEW):
        """A way by UCX, with one of its transports as `rdma_transports` names them, in the place of a card. Workers
        have no sandbox, which forbids what these need."""
        name = f"{broker}.ucx.{by}"
        pool = self.broker(name, "--no-sandbox", "--rdma-transports", by, *options, build=build)
        self.ucx_transports[pool] = by
        return Transport(f"{build} ucx".strip(), 0, pool, tuple(self.socket_server().split(":")), build, name)

    def with_ucx(self, build=NEW):
        """An environment in which the UCX that a stage brings along is found."""
        folder = os.path.join(self.builds[build], "ucx")
        folders = [folder, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return dict(os.environ, **({"LD_LIBRARY_PATH": ":".join(folders)} if os.path.isdir(folder) else {}))

    def transports(self, rtts, rate=None, broker="default", options=()):
        """The loopback, each round trip time in milliseconds, shared memory, and UCX by its TCP, as far as they are
        wanted; each to every build."""
        pools, sockets = {build: self.broker(broker, *options, build=build)
                          for build in self.builds}, self.socket_server()

        def way(name, rtt, plain, pool_of):
            return [Transport(f"{build} {name}".strip(), rtt, pool_of(build), tuple(plain.split(":")), build, broker)
                    for build in self.builds]

        found = way("tcp", 0, sockets, pools.get) if "tcp" in self.kinds else []
        for rtt in rtts if "tcp" in self.kinds else ():
            plain, pool_of = self.proxy(sockets, rtt / 1e3,
                                        rate), lambda build, rtt=rtt: self.proxy(pools[build], rtt / 1e3, rate)
            found += way(f"tcp+{rtt:g}", rtt / 1e3, plain, pool_of)
        if "shm" in self.kinds:
            found += way("shm", 0, sockets, lambda build: self.socket(broker, build))
        if "ucx" in self.kinds:
            found += [self.ucx("tcp", broker, options, build) for build in self.builds]
        return found

    def server_pids(self, broker="default", build=NEW):
        """A broker and its workers."""
        pid = self.brokers[broker, build][0].pid
        return [pid, *children_of(pid)]

    def server_cpu(self, broker="default", build=NEW):
        """CPU seconds of a broker and its workers so far."""
        return sum(map(cpu_of, self.server_pids(broker, build)))

    # --- clients -----------------------------------------------------------------------------------------------------

    def remotely(self, command, pool):
        build = self.builds[OLD if pool in self.old_pools else NEW]
        check = [] if "," in pool else ["--no-check"]  # what is leased of several hosts is leased ahead
        command = [os.path.join(build, "bin", "fargpu"), "run", *check, "--", *command]
        return self.without_driver.command(command) if self.without_driver else command

    def environment(self, pool, extra):
        env = dict(os.environ, PYTHONUNBUFFERED="1", CUBLAS_WORKSPACE_CONFIG=":4096:8", **(extra or {}))
        if pool:
            env["FARGPU_POOL"] = pool
            # All of this is one machine, where a client by TCP, even through a proxy, would find the shorter way.
            env["FARGPU_TRANSPORT"] = "shm" if pool.startswith("unix:") else "tcp"
        if pool in self.ucx_transports:
            build = OLD if pool in self.old_pools else NEW
            env |= {name: value for name, value in self.with_ucx(build).items() if name == "LD_LIBRARY_PATH"}
            env |= {"FARGPU_TRANSPORT": "rdma", "FARGPU_RDMA_TRANSPORTS": self.ucx_transports[pool]}
        return env

    @contextlib.contextmanager
    def asked(self, command, pool=None, extra=None, label=None):
        """A program on the local driver, or through fargpu at a pool."""
        label = f"{label or os.path.basename(command[0])}.{'remote' if pool else 'local'}"
        program = Asked(self.remotely(command, pool) if pool else command, self.environment(pool, extra),
                        self.log(label))
        try:
            yield program
        finally:
            program.end()

    @contextlib.contextmanager
    def plain(self, transport):
        """Plain sockets over a transport."""
        program = Asked([os.path.join(self.bench, "sockets"), *transport.sockets], dict(os.environ),
                        self.log("sockets.client"))
        try:
            yield program
        finally:
            program.end()

    def run(self, command, pool=None, extra=None, timeout=120, label=None):
        """A program to its end; what it wrote to stdout, and how long it took."""
        log = self.log(f"{label or os.path.basename(command[0])}.{'remote' if pool else 'local'}")
        begin = time.monotonic()
        try:
            with open(log, "w") as errors:
                done = subprocess.run(self.remotely(command, pool) if pool else command, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE,
                                      stderr=errors, env=self.environment(pool, extra), timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command[-2:])} is not done after {timeout} s") from None
        if done.returncode != 0:
            with open(log, errors="replace") as file:
                raise Failed(f"{' '.join(command[-2:])} ends with {done.returncode}: {file.read()[-400:].strip()}")
        return done.stdout.decode(errors="replace"), time.monotonic() - begin

    # --- counters ----------------------------------------------------------------------------------------------------

    def counters(self, command, pool, lines, extra=None, timeout=200, label=None, first_answer=False):
        """What the client counted in a run that was told these lines [(case, values)]: round trips, bytes sent and
        received. With `first_answer` the program says by itself when it is ready."""
        with tempfile.NamedTemporaryFile(dir=self.out, suffix=".stats") as stats:
            settings = dict(extra or {}, FARGPU_LOG="stats,warn", FARGPU_LOG_FILE=stats.name)
            with self.asked(command, pool, settings, label or os.path.basename(command[0]) + ".counted") as program:
                if first_answer:
                    program.answer(timeout)
                for case, values in lines:
                    program.ask(case, timeout, **values)
            with open(stats.name, errors="replace") as file:
                text = file.read()
        match = re.search(r"round trips (\d+), bytes sent (\d+), bytes received (\d+)", text)
        if not match:
            raise Failed(f"the client told no counters: {text[-300:].strip()} {program.last_words()}")
        operations = {name: int(frames)
                      for name, frames in re.findall(r"(?m)^  (\w+) +(\d+) +\d+ +\d+ +\d+ +\d+$", text)}
        return Counters(*map(int, match.groups()), operations)


@dataclasses.dataclass(frozen=True)
class Counters:
    trips: int
    sent: int  # bytes, as received
    received: int
    operations: dict  # frames sent, by name


def per_unit(few, many, units):
    """Round trips, bytes sent and received of one unit, from runs of few and of many."""
    return [(getattr(many, name) - getattr(few, name)) / units for name in ("trips", "sent", "received")]
