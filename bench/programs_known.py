"""W16: weights that a program loads from a file, where the tenant's host has had them before. Each load is a program of
its own; they go by lines of 10 and 25 Gb/s. The pickled file has the same weights, so that the host has had them
too."""

import concurrent.futures
import dataclasses
import json
import os
import re
import statistics
import subprocess
import tempfile
import time

from machine import HERE, Failed
from program_steps import checkpoint
from rounds import spread

RATES = {10: 1250, 25: 3125}  # Gb/s: MB/s
RTT = 0.2e-3
LOAD = ["python3", os.path.join(HERE, "programs", "one_load.py")]
PICKLE = ["python3", os.path.join(HERE, "programs", "pickled.py")]
KEPT = 64 << 30  # that the broker of this row may keep
KINDS = ("safetensors", "pickled")
# What is measured through each line, and what people call it.
LOADS = {"off": "load without", "first": "first load", "second": "second load", "pickled": "second load, pickled",
         "two": "two first loads at once"}


@dataclasses.dataclass(frozen=True)
class Load:
    seconds: float
    cpu: float
    bytes: int
    value: int
    sent: int = 0
    server_cpu: float = 0
    hashing: float = 0  # seconds of the client's threads
    remembered: int = 0  # names of blocks


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


def settled(machine, broker, patience=60):
    """Waits until the workers of ended programs have ended too, which keep what was sent beside the session."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        done = subprocess.run([os.path.join(machine.stage, "bin", "fargpu"), "ls", "-o", "json", "--pool", broker],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(done.stderr.strip())
        if not json.loads(done.stdout)[0]["sessions"]:
            return
        time.sleep(0.05)
    raise Failed("a program has ended, and its session has not")


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
        counters = file.read()
    counted = re.search(r"bytes sent (\d+)", counters)
    if not counted:
        raise Failed("the client told no counters")
    settled(machine, machine.broker("known"))
    named = re.search(r"; (\S+) s of hashing, names of (\d+) blocks remembered", counters)
    return Load(**told, sent=int(counted[1]), server_cpu=spent(machine) - before,
                hashing=float(named[1]) if named else 0, remembered=int(named[2]) if named else 0)


def together(machine, command, path, pool, cache):
    """Two programs at the same time: the seconds of the slower one, and their bytes."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        both = [one.result() for one in [threads.submit(load, machine, command, path, pool, cache) for _ in range(2)]]
    return dataclasses.replace(both[0], seconds=max(one.seconds for one in both), sent=sum(one.sent for one in both))


def pickled(path, command=None):
    """The path of the same weights in the other kind of file."""
    to = path.removesuffix(".safetensors") + ".pt"
    if not os.path.exists(to):
        done = subprocess.run([*(command or PICKLE), path, to], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(done.stderr.strip())
    return to


def case_of(what, rate):
    return f"{what}, {rate} Gb/s"


WHATS = ("bytes on the wire", "time", "bytes on the wire, pickled", "time, pickled", "first load")


def run(bench, command=None, pickle=None):
    """The host keeps contents in memory (a tmpfs), so that its disk is not what is measured."""
    places = [("W16", "tcp", case_of(what, rate)) for rate in RATES for what in WHATS]
    with bench.attempt(*places), tempfile.TemporaryDirectory(prefix="fargpu-contents.", dir="/dev/shm") as memory:
        machine, command = bench.machine, command or LOAD
        path = checkpoint(os.path.join(machine.out, "caches"), bench.sizes.known_bytes)
        paths = dict(zip(KINDS, (path, pickled(path, pickle))))
        broker = machine.broker("known", "--content-bytes-max", str(KEPT), "--content-folder", memory)
        lines, cache = {gb: machine.proxy(broker, RTT, rate) for gb, rate in RATES.items()}, bench.sizes.known_cache
        local = {kind: [] for kind in KINDS}
        found = {gb: {name: [] for name in LOADS} for gb in RATES}
        for number in range(bench.rounds):
            for kind in KINDS:
                local[kind].append(load(machine, command, paths[kind]))
            for gb, line in lines.items():
                measures = {"off": lambda: load(machine, command, path, line),
                            "first": lambda: [clear(machine, broker), load(machine, command, path, line, cache)][1]}
                for name in list(measures)[::-1 if number % 2 else 1]:
                    found[gb][name].append(measures[name]())
                # The last load may have been one without: the host has the weights from an earlier one all the same.
                found[gb]["second"].append(load(machine, command, path, line, cache))
                found[gb]["pickled"].append(load(machine, command, paths["pickled"], line, cache))
                clear(machine, broker)
                found[gb]["two"].append(together(machine, command, path, line, cache))
        for gb in RATES:
            tell(bench, gb, local, found[gb])


def tell(bench, gb, local, found):
    size = local["safetensors"][0].bytes
    values = {one.value for loads in (*local.values(), *found.values()) for one in loads}

    def of(loads, name):
        return [getattr(one, name) for one in loads]

    def percent(loads):
        return [100 * sent / size for sent in of(loads, "sent")]

    detail = {
        **{f"N, {kind}": statistics.median(of(local[kind], "seconds")) for kind in KINDS},
        "bytes": size, "line": f"{RATES[gb]} MB/s",
        **{f"T, {LOADS[name]}": statistics.median(of(found[name], "seconds")) for name in LOADS},
        **{f"% sent, {LOADS[name]}": spread(percent(found[name])) for name in LOADS},
        **{f"{side} CPU s/GB, {LOADS[name]}": statistics.median(of(found[name], key)) / (size / 1e9)
           for side, key in (("client", "cpu"), ("server", "server_cpu"))
           for name in LOADS if name != "two"},
        **{f"hashing s, {LOADS[name]}": statistics.median(of(found[name], "hashing"))
           for name in LOADS if name != "off"},
        "names remembered, second load": statistics.median(of(found["second"], "remembered")),
        "values": "equal" if len(values) == 1 else "different"}

    def add(what, rounds):
        bench.results.add("W16", "tcp", case=case_of(what, gb), rounds=rounds, detail=detail)

    for name, kind, suffix in (("second", "safetensors", ""), ("pickled", "pickled", ", pickled")):
        add("bytes on the wire" + suffix, percent(found[name]))
        add("time" + suffix, [t / n for t, n in zip(of(found[name], "seconds"), of(local[kind], "seconds"))])
    add("first load", [a / b for a, b in zip(of(found["first"], "seconds"), of(found["off"], "seconds"))])
