"""Programs that use a device at the same time: through fargpu, on the local driver (which gives each a slice of time),
or there under MPS."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from machine import Failed


class Tenant:
    """One program (tests/system/programs/turns.cu, tenant.cu), told lines and heard."""

    def __init__(self, command, env, log):
        with open(log, "w") as errors:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=errors)
        self.log, self.rest = log, b""

    def line(self, timeout):
        end = time.monotonic() + timeout
        while b"\n" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failed(f"a tenant says nothing for {timeout:.0f} s: {self.last_words()}")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise Failed(f"a tenant ended with {self.process.wait()}: {self.last_words()}")
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode()

    def ready(self, timeout=120):
        if self.line(timeout) != "ready":
            raise Failed(f"a tenant did not begin: {self.last_words()}")
        return self

    def tell(self):
        with contextlib.suppress(OSError):
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()

    def found(self, timeout):
        return json.loads(self.line(timeout))

    def last_words(self):
        with open(self.log, errors="replace") as log:
            return log.read()[-300:].strip() or "it said nothing"

    def end(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def kill(self):
        self.process.kill()
        self.process.wait()


class Tenants:
    LOCAL = None  # for a pool: the local driver

    def __init__(self, bench):
        self.machine, self.seconds = bench.machine, bench.sizes.share_seconds
        self.mps = {}  # the environment of programs under MPS, while it runs

    def pool(self, policy, name=None, *options):
        return self.machine.broker(f"policy.{name or policy}", "--policy", policy, "--warm-workers", "2", *options)

    def pool_under_mps(self, partitions=False):
        """Of a broker whose sessions go by the MPS daemon that runs now, and whose policy leaves the rest to that, or
        to multiprocessors of each lease's own."""
        name = "partitions" if partitions else "mps"
        path = os.path.join(self.machine.out, f"{name}.toml")
        with open(path, "w") as file:
            file.write(f'[tenant.default]\nmps = "{self.mps["CUDA_MPS_PIPE_DIRECTORY"]}"\n' +
                       "sm_partitions = true\n" * partitions)
        return self.pool("free", name, "--config", path)

    def start(self, pool, program, arguments, env=None):
        command = [os.path.join(self.machine.bench, program), *map(str, arguments)]
        env = self.machine.environment(pool, env or (self.mps if not pool else None))
        return Tenant(self.machine.remotely(command, pool) if pool else command, env, self.machine.log("tenant"))

    @contextlib.contextmanager
    def started(self, pool, program, wishes):
        """All of [(arguments, environment)], ready; ended afterwards."""
        tenants = []
        try:
            for arguments, env in wishes:
                tenants.append(self.start(pool, program, arguments, env))
            for tenant in tenants:
                tenant.ready()
            yield tenants
        finally:
            for tenant in tenants:
                tenant.end()

    def run(self, pool, wishes, then=None):
        """What each of [(arguments of `turns`, environment)] got done in the same seconds. `then` is called when all
        have begun."""
        with self.started(pool, "turns", [(["together", *arguments], env) for arguments, env in wishes]) as tenants:
            for tenant in tenants:
                tenant.tell()
            if then:
                then()
            return [tenant.found(self.seconds * 20 + 60) for tenant in tenants]

    def alone(self, pool, *arguments):
        return self.run(pool, [(arguments, None)])[0]

    def change(self, pool, session, **wish):
        command = [os.path.join(self.machine.stage, "bin", "fargpu"), "quota", str(session), "--host", pool]
        for name, value in wish.items():
            command += [f"--{name}", str(value)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def sessions(self, pool):
        return [session["id"] for session in self.told_sessions(pool)]

    def told_sessions(self, pool):
        """As `fargpu ls -o json` tells of them."""
        done = subprocess.run([os.path.join(self.machine.stage, "bin", "fargpu"), "ls", "-o", "json", "--pool", pool],
                              check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout)[0]["sessions"]

    @contextlib.contextmanager
    def under_mps(self):
        """Local programs share the device by MPS meanwhile, with a daemon of their own. Raises Failed, with why, where
        that cannot be."""
        control = shutil.which("nvidia-cuda-mps-control")
        if not control:
            raise Failed("MPS: this machine has no nvidia-cuda-mps-control")
        with tempfile.TemporaryDirectory(prefix="mps.") as folder:
            env = {"CUDA_MPS_PIPE_DIRECTORY": os.path.join(folder, "pipe"),
                   "CUDA_MPS_LOG_DIRECTORY": os.path.join(folder, "log")}
            for path in env.values():
                os.mkdir(path)
            begun = subprocess.run([control, "-d"], env=dict(os.environ, **env), capture_output=True, text=True,
                                   timeout=30)
            if begun.returncode != 0:
                raise Failed(f"MPS does not start: {' '.join((begun.stdout + begun.stderr).split())}")
            self.mps = env
            try:
                yield
            finally:
                self.mps = {}
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run([control], env=dict(os.environ, **env), input="quit\n", capture_output=True,
                                   text=True, timeout=30)

    @contextlib.contextmanager
    def beside(self, where):
        """Tenants without fargpu: by `slices` of time, as the driver gives them to processes, or by `mps`."""
        with self.under_mps() if where == "mps" else contextlib.nullcontext():
            yield self.LOCAL


WITHOUT = ("slices", "mps")  # how a device is shared without fargpu


def jain(parts):
    return sum(parts) ** 2 / (len(parts) * sum(p * p for p in parts))


def device_mib(what="used"):
    """Memory of the first device in use, of all processes, as NVML has it; or what the device has in total."""
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu=memory.{what}", "--format=csv,noheader,nounits", "-i", "0"],
                              capture_output=True, text=True, timeout=30)
        return int(done.stdout.split()[0])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        raise Failed("what the driver takes of the device cannot be seen: no nvidia-smi tells it here") from None
