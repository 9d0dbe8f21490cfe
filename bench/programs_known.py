"""W16: weights that a program loads from a file, where the tenant's host has had them before. Each load is a program of
its own; they go by a line of 10 Gb/s."""

import concurrent.futures
import dataclasses
import json
import os
import re
import statistics
import subprocess

from machine import HERE, Failed
from program_steps import checkpoint
from rounds import field, middle, spread

RATE = 1250  # MB/s
RTT = 0.2e-3
LOAD = ["python3", os.path.join(HERE, "programs", "one_load.py")]
KEPT = 64 << 30  # that the broker of this row may keep


@dataclasses.dataclass(frozen=True)
class Load:
    seconds: float
    cpu: float
    bytes: int
    value: int
    sent: int = 0
    server_cpu: float = 0


def spent(machine):
    """CPU seconds of the broker and its workers, those that have ended too."""
    with open(f"/proc/{machine.server_pids('known')[0]}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return machine.server_cpu("known") + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def clear(machine, broker):
    done = subprocess.run([os.path.join(machine.stage, "bin", "fargpu"), "cache", "--clear", "--host", broker],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())


def load(machine, command, path, pool=None, cache="off"):
    """One program, to its end."""
    log = os.path.join(machine.out, f"known.{next(machine.counter)}.stats")
    before = spent(machine) if pool else 0
    text, _ = machine.run([*command, path], pool, {"FARGPU_LOG": "stats,warn", "FARGPU_LOG_FILE": log,
                                                   "FARGPU_CONTENT_CACHE": cache}, timeout=600, label="known")
    told = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    if not pool:
        return Load(**told)
    with open(log, errors="replace") as file:
        counted = re.search(r"bytes sent (\d+)", file.read())
    if not counted:
        raise Failed("the client told no counters")
    return Load(**told, sent=int(counted[1]), server_cpu=spent(machine) - before)


def together(machine, command, path, pool, cache):
    """Two programs at the same time: the seconds of the slower one, and their bytes."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        both = [one.result() for one in [threads.submit(load, machine, command, path, pool, cache) for _ in range(2)]]
    return dataclasses.replace(both[0], seconds=max(one.seconds for one in both), sent=sum(one.sent for one in both))


def run(bench, command=None):
    places = [("W16", "tcp", case) for case in ("bytes on the wire", "time")]
    with bench.attempt(*places):
        machine, command = bench.machine, command or LOAD
        path = checkpoint(os.path.join(machine.out, "caches"), bench.sizes.known_bytes)
        broker = machine.broker("known", "--content-bytes-max", str(KEPT))
        line, cache = machine.proxy(broker, RTT, RATE), bench.sizes.known_cache
        found = {name: [] for name in ("local", "off", "first", "second", "two")}
        for _ in range(bench.rounds):
            found["local"].append(load(machine, command, path))
            found["off"].append(load(machine, command, path, line))
            clear(machine, broker)
            found["first"].append(load(machine, command, path, line, cache))
            found["second"].append(load(machine, command, path, line, cache))
            clear(machine, broker)
            found["two"].append(together(machine, command, path, line, cache))
        tell(bench, {name: [dataclasses.asdict(one) for one in loads] for name, loads in found.items()})


def tell(bench, found):
    size = found["local"][0]["bytes"]
    part = {name: [100 * sent / size for sent in field(found[name], "sent")] for name in found}
    detail = {
        "N": middle(found["local"], "seconds"), "bytes": size, "line": f"{RATE} MB/s",
        **{f"T of the {what}": middle(found[name], "seconds")
           for name, what in (("off", "load without"), ("first", "first load"), ("second", "second load"),
                              ("two", "slower of two first ones at once"))},
        "first load / load without": spread([a / b for a, b in zip(field(found["first"], "seconds"),
                                                                  field(found["off"], "seconds"))]),
        **{f"{side} CPU s/GB, {what}": statistics.median(field(found[name], key)) / (size / 1e9)
           for side, key in (("client", "cpu"), ("server", "server_cpu"))
           for name, what in (("off", "load without"), ("first", "first load"), ("second", "second load"))},
        "% sent by two at once": statistics.median(part["two"]),
        "values": "equal" if len({one["value"] for loads in found.values() for one in loads}) == 1 else "different"}
    bench.results.add("W16", "tcp", case="bytes on the wire", rounds=part["second"], detail=detail)
    bench.results.add("W16", "tcp", case="time", rounds=[
        t / n for t, n in zip(field(found["second"], "seconds"), field(found["local"], "seconds"))], detail=detail)
