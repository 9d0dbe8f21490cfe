"""What UCX itself gives on this machine, by its own program `ucx_perftest`."""

import os
import shutil
import subprocess
import time

from machine import Failed

PORTS = iter(range(21000, 28000))
LISTENS = "0A"  # a state in /proc/net/tcp
ENVIRONMENT = {"tcp": {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}, "memory": {"UCX_TLS": "sysv"}}


def program(machine):
    """Its path: that of a stage, or this machine's."""
    staged = os.path.join(machine.stage, "ucx", "perftest", "ucx_perftest")
    found = staged if os.path.exists(staged) else shutil.which("ucx_perftest")
    if not found:
        raise Failed("there is no ucx_perftest; the package ucx-utils has it")
    return found


def measure(machine, by, test, size, count, pairs=1):
    """Seconds a message of each of so many pairs of processes that run a test at once, each with a worker of UCX at
    both ends: {"median": ..., "mean": ...} of each. A test of latency says half a round trip."""
    command, env = program(machine), machine.with_ucx()
    own = os.path.dirname(command)
    env = dict(env, **ENVIRONMENT[by], UCX_WARN_UNUSED_ENV_VARS="n",
               LD_LIBRARY_PATH=":".join(filter(None, [own, env.get("LD_LIBRARY_PATH")])))
    ports = [next(port for port in PORTS if port not in listening()) for _ in range(pairs)]
    servers, clients = [], []
    with open(machine.log("ucx_perftest"), "w") as log:
        try:
            servers = [subprocess.Popen([command, "-p", str(port)], env=env, stdout=log, stderr=log) for port in ports]
            end = time.monotonic() + 20
            while not listening() >= set(ports):
                if time.monotonic() > end or any(one.poll() is not None for one in servers):
                    raise Failed("ucx_perftest does not listen")
                time.sleep(0.01)
            clients = [subprocess.Popen([command, "127.0.0.1", "-p", str(port), "-t", test, "-s", str(size), "-n",
                                         str(count), "-w", str(max(1, count // 10)), "-f", "-v"],
                                        env=env, stdout=subprocess.PIPE, stderr=log, text=True) for port in ports]
            return [figures(one.communicate(timeout=120)[0]) for one in clients]
        except subprocess.TimeoutExpired:
            raise Failed(f"ucx_perftest is not done with {test} after 120 s") from None
        finally:
            for one in (*clients, *servers):
                one.kill()
                one.wait()


def figures(text):
    """Of the two lines of CSV that it prints, with times in microseconds."""
    lines = [line.split(",") for line in text.splitlines() if line.count(",") >= 7]
    if len(lines) < 2:
        raise Failed(f"ucx_perftest says {text[-200:].strip() or 'nothing'}")
    found = dict(zip(lines[0], lines[-1]))
    return {"median": 1e-6 * float(found["50.0_percentile_lat"]), "mean": 1e-6 * float(found["overall_lat"])}


def listening():
    """TCP ports of this machine at which somebody listens."""
    with open("/proc/net/tcp") as file:
        fields = [line.split() for line in file.readlines()[1:]]
    return {int(one[1].rpartition(":")[2], 16) for one in fields if one[3] == LISTENS}
