"""Programs whose steps take turns: one process at the local driver and one for each transport, all at once."""

import dataclasses
import json
import os

from machine import HERE, Failed, lanes_of
from rounds import in_turn

LONGEST = {"W12": 1e-3}  # round trip times, for what takes seconds a step
NOTHING = "-"  # in the place of a workload that is not wanted (programs/steps.py)
COMPARED = 8  # values of both sides
SOCKET_BYTES = 128 << 20  # by which what sockets carry is measured

# What a time is beside where that is not N, by a way that has sockets: N and the time that plain sockets take for a
# step's bytes.
BESIDE = {"W11": lambda local, sockets: local + sockets, "W12": max}
BESIDE |= {("W13", case): lambda _, sockets: sockets for case in ("device_put", "device_get")}


@dataclasses.dataclass(frozen=True)
class Program:
    """What one process serves: workloads, by their names in programs/. `W2.fixed kernels` is the case `fixed kernels`
    of W2."""

    names: tuple
    script: str = "workloads.py"
    counted: bool = True  # whether round trips are counted, which takes two more runs
    local_first: bool = False  # its compiler's cache serves the others

    @property
    def label(self):
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} and {len(self.names) - 1} more"


def row_of(name):
    """The row and the case of a name."""
    row, _, case = name.partition(".")
    return row, case


def beside(name):
    row, case = row_of(name)
    return BESIDE.get(row) or BESIDE.get((row, case))


@dataclasses.dataclass
class Set:
    """What the processes of a program, one at the local driver and one for each transport, measured in turn, by
    name."""

    pings: dict  # round trip times in seconds, of plain sockets, by transport
    about: dict = dataclasses.field(default_factory=dict)  # what the program says of each workload
    failed: dict = dataclasses.field(default_factory=dict)  # why there is no figure, by name and transport
    counts: dict = dataclasses.field(default_factory=dict)  # steps a round
    server: dict = dataclasses.field(default_factory=dict)  # CPU seconds a step of each round
    # seconds that plain sockets take for a step's bytes, of each round
    sockets: dict = dataclasses.field(default_factory=dict)
    streams: dict = dataclasses.field(default_factory=dict)  # of these sockets, by transport
    found: dict = dataclasses.field(default_factory=dict)  # answers of each round, of `local` too
    values: dict = dataclasses.field(default_factory=dict)  # the first that steps computed, of `local` too


def command_of(program):
    """What names of workloads are given to."""
    return ["python3", os.path.join(HERE, "programs", program.script)]


def settings_of(bench, program):
    caches = os.path.join(bench.machine.out, "caches")
    settings = {"TORCHINDUCTOR_CACHE_DIR": caches + "/inductor", "TRITON_CACHE_DIR": caches + "/triton",
                "BENCH_CHECKPOINT_BYTES": str(bench.sizes.checkpoint_bytes)}
    if "W12.safetensors" in program.names:
        settings["BENCH_SAFETENSORS"] = checkpoint(caches, bench.sizes.checkpoint_bytes)
    return settings


def checkpoint(folder, size):
    """The path of a file of safetensors with so many bytes of weights, in which nothing repeats for a while, and no
    block of 1 MiB of a tensor is another one. What is written is in the page cache."""
    path = os.path.join(folder, f"{size}.safetensors")
    if os.path.exists(path):
        return path
    os.makedirs(folder, exist_ok=True)
    edge = 4096
    layers = max(1, round(size / (4 * edge * edge)))
    tensors = {f"{i}.weight": {"dtype": "I32", "shape": [edge, edge],
                               "data_offsets": [4 * edge * edge * i, 4 * edge * edge * (i + 1)]} for i in range(layers)}
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    piece, block = bytearray(os.urandom(4 << 20)), 1 << 20
    with open(path + ".part", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for i in range(layers * 4 * edge * edge // len(piece)):
            for at in range(0, len(piece), block):
                piece[at:at + 8] = (i * len(piece) + at).to_bytes(8, "little")
            file.write(piece)
    os.rename(path + ".part", path)
    return path


def compared(sets, on):
    """Whether the values of each set are the local ones, and if not, whether the local ones of the sets are one
    another's: many kernels add in any order."""
    if all(values[on] == values["local"] for values in sets):
        return "equal"
    if len(sets) < 2:
        return "different"
    return "different, local ones too" if any(values["local"] != sets[0]["local"]
                                              for values in sets) else "different, local ones equal"


def in_processes(bench, stack, program, command, extra, transports, failed, beside_sockets=True, longest=LONGEST):
    """One set of processes. Those that do not start are told in `failed`, {transport: why}. Rows in `longest` are not
    measured with a longer round trip time."""
    machine = bench.machine

    def wanted(name, t):
        return t is None or t.rtt <= longest.get(row_of(name)[0], t.rtt)

    def started(t=None):
        names = [name if wanted(name, t) else NOTHING for name in program.names]
        return stack.enter_context(machine.asked([*command, *names], t and t.pool, extra, program.label))

    local = started()
    if program.local_first:
        said = {"local": local.answer(300)["cases"]}
    remote = {t.name: started(t) for t in transports}
    if not program.local_first:
        said = {"local": local.answer(300)["cases"]}
    ready = {}
    for t in transports:
        try:
            said[t.name] = remote[t.name].answer(300)["cases"]
            ready[t.name] = t
        except Failed as error:
            failed[t.name] = " ".join(str(error).split())
    plain = {on: stack.enter_context(machine.plain(t)) for on, t in ready.items()}
    one = Set({on: plain[on].ask("pingpong", count=20, bytes=64, spin=0)["seconds"] for on in ready})
    one.streams = {on: lanes_of(remote[on].process.pid, t.pool)[0] for on, t in ready.items() if t.way != "shm"}
    # Workloads of one process have half the time, for there are many of them.
    budget = bench.sizes.step_seconds / (2 if len(program.names) > 1 else 1)
    for i, name in enumerate(program.names):
        those = {on: t for on, t in ready.items() if wanted(name, t)}
        wrong = {on: f"{on}: {said[on][i]['error']}" for on in ("local", *those) if "error" in said[on][i]}
        one.failed |= {(name, on): wrong.get("local") or wrong[on] for on in those if on in wrong or "local" in wrong}
        those = {on: t for on, t in those.items() if (name, on) not in one.failed}
        if not those:
            continue
        asked, one.about[name] = {"local": local, **{on: remote[on] for on in those}}, said["local"][i]
        try:
            one.found[name] = measured(bench, one, i, name, asked, those,
                                       plain if beside_sockets and beside(name) else {}, budget)
            one.values[name] = {on: each.ask("values", count=COMPARED, of=i)["values"] for on, each in asked.items()}
        except Failed as error:
            if len(program.names) == 1:
                raise
            one.found.pop(name, None)
            one.failed |= {(name, on): " ".join(str(error).split()) for on in those}
    return one


def measured(bench, one, i, name, asked, ready, plain, budget):
    """Answers of each round of the i-th workload, locally and on each transport; what else is measured in turn with
    them, by `plain` sockets too, is told to the set."""
    machine, about = bench.machine, one.about[name]

    def steps_for(seconds):
        return max(1, min(bench.sizes.steps_max, int(budget / seconds)))

    # Everyone makes as many steps as the local driver manages in the time, unless a round trip time makes that too
    # long.
    few = 2 if about["warm"] else 1
    mine = asked["local"].ask("steps", 200, count=few, of=i)["seconds"]
    counts = {"local": steps_for(mine)}
    for on in ready:
        theirs = asked[on].ask("steps", 200, count=few, of=i)["seconds"]
        counts[on] = counts["local"] if theirs < 3 * mine else steps_for(theirs)
        one.counts[name, on], one.server[name, on] = counts[on], []

    def remotely(on):
        before = machine.server_cpu(ready[on].broker, ready[on].build)
        answer = asked[on].ask("steps", 200, count=counts[on], of=i)
        used = machine.server_cpu(ready[on].broker, ready[on].build) - before
        one.server[name, on].append(used / answer["made"])
        return answer

    def carried(on):
        """How long plain sockets take for what a step carries. The first one warms up."""
        total = 0.0
        for direction, size in (("htod", about["up"]), ("dtoh", about["down"])):
            if size:
                part = min(size, SOCKET_BYTES)
                total += size / part * plain[on].ask("stream", streams=one.streams[on], memory="whole",
                                                     direction=direction, bytes=part, count=3)["copy"]
        one.sockets.setdefault((name, on), []).append(total)

    with_sockets = [on for on in plain if on in ready and on in one.streams]
    return in_turn(bench.rounds, {
        "local": lambda: asked["local"].ask("steps", 200, count=counts["local"], of=i),
        **{on: lambda on=on: remotely(on) for on in ready},
        **{f"sockets {on}": lambda on=on: carried(on) for on in with_sockets}})
