"""PyTorch and JAX programs: W1 to W15. A process for each way, all at once; their steps take turns. What differs from process to process,
such as where its memory lies, is seen only with several sets of them."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import statistics

from machine import HERE, Failed, lanes_of, per_unit
from rounds import in_turn, middle, ratios


@dataclasses.dataclass(frozen=True)
class Program:
    """What one process serves: workloads, by their names in programs/. `W2.fixed kernels` is the case `fixed kernels` of W2."""

    names: tuple
    script: str = "workloads.py"
    counted: bool = True  # whether round trips are counted, which takes two more runs
    local_first: bool = False  # its compiler's cache serves the others

    @property
    def label(self):
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} and {len(self.names) - 1} more"


PROGRAMS = [
    *(Program((name,)) for name in ("W1", "W2", "W2.fixed kernels", "W3", "W4", "W5")), Program(("W6.compile",), local_first=True),
    *(Program((name,)) for name in ("W6.graph", "W7.copies", "W7.synchronise")), Program(("W8",), local_first=True),
    Program(("W9.one stream", "W9.a second stream", "W10"), counted=False),
    Program(("W11", "W12.state_dict", "W12.load_state_dict", "W12.safetensors", "W15.nonzero", "W15.unique", "W15.any"), counted=False),
    Program(("W13.jit", "W13.training loop", "W13.device_put", "W13.device_get"), "jax_loops.py", counted=False),
    Program(("W14.eager", "W14.compiled"), local_first=True)]

# What a time is beside where that is not N, by a way that has sockets: N and the time that plain sockets take for a step's bytes.
BESIDE = {"W11": lambda local, sockets: local + sockets, "W12": max}
BESIDE |= {("W13", case): lambda _, sockets: sockets for case in ("device_put", "device_get")}

LONGEST = {"W12": 1e-3}  # round trip times, for what takes seconds a step
FEW, MANY = 2, 6  # steps of the two runs that count round trips
COMPARED = 8  # values of both sides
SOCKET_BYTES = 128 << 20  # by which what sockets carry is measured


def row_of(name):
    """The row and the case of a name."""
    row, _, case = name.partition(".")
    return row, case


def beside(name):
    row, case = row_of(name)
    return BESIDE.get(row) or BESIDE.get((row, case))


def run(bench):
    for program in PROGRAMS:
        wanted = dataclasses.replace(program, names=tuple(name for name in program.names if bench.wants(row_of(name)[0])))
        if wanted.names:
            print(f"  {wanted.label} ...", flush=True)
            with bench.attempt(*(place for name in wanted.names for place in bench.places(row_of(name)[0], case=row_of(name)[1]))):
                workload(bench, wanted)


@dataclasses.dataclass
class Set:
    """What the processes of a program, one at the local driver and one for each transport, measured in turn, by name."""

    pings: dict  # round trip times in seconds, of plain sockets, by transport
    about: dict = dataclasses.field(default_factory=dict)  # what the program says of each workload
    failed: dict = dataclasses.field(default_factory=dict)  # why there is no figure, by name and transport
    counts: dict = dataclasses.field(default_factory=dict)  # steps a round
    server: dict = dataclasses.field(default_factory=dict)  # CPU seconds a step of each round
    sockets: dict = dataclasses.field(default_factory=dict)  # seconds that plain sockets take for a step's bytes, of each round
    streams: dict = dataclasses.field(default_factory=dict)  # of these sockets, by transport
    found: dict = dataclasses.field(default_factory=dict)  # answers of each round, of `local` too
    values: dict = dataclasses.field(default_factory=dict)  # the first that steps computed, of `local` too


def command_of(program, names=None):
    return ["python3", os.path.join(HERE, "programs", program.script), *(names or program.names)]


def settings_of(bench, program):
    caches = os.path.join(bench.machine.out, "caches")
    settings = {"TORCHINDUCTOR_CACHE_DIR": caches + "/inductor", "TRITON_CACHE_DIR": caches + "/triton",
                "BENCH_CHECKPOINT_BYTES": str(bench.sizes.checkpoint_bytes)}
    if "W12.safetensors" in program.names:
        settings["BENCH_SAFETENSORS"] = checkpoint(caches, bench.sizes.checkpoint_bytes)
    return settings


def checkpoint(folder, size):
    """The path of a file of safetensors with so many bytes of weights, in which nothing repeats for a while. What is written is in the page cache."""
    path = os.path.join(folder, f"{size}.safetensors")
    if os.path.exists(path):
        return path
    os.makedirs(folder, exist_ok=True)
    edge = 4096
    layers = max(1, round(size / (4 * edge * edge)))
    tensors = {f"{i}.weight": {"dtype": "I32", "shape": [edge, edge], "data_offsets": [4 * edge * edge * i, 4 * edge * edge * (i + 1)]} for i in range(layers)}
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    piece = os.urandom(4 << 20)
    with open(path + ".part", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(layers * 4 * edge * edge // len(piece)):
            file.write(piece)
    os.rename(path + ".part", path)
    return path


def workload(bench, program, command=None):
    """Measures a program, or one that is started by another command and answers alike."""
    machine = bench.machine
    extra = settings_of(bench, program)
    transports = machine.transports(bench.rtts, bench.rate)
    sets, failed = [], {}
    for _ in range(bench.processes):
        try:
            with contextlib.ExitStack() as stack:
                sets.append(in_processes(bench, stack, program, command or command_of(program), extra, [t for t in transports if t.name not in failed], failed))
        except Failed:
            if not sets:
                raise
            break  # what was measured before stands, and says of how many sets it is
        if len(failed) == len(transports):
            break
    measured = {t.name: those for t in transports if (those := [one for one in sets if t.name in one.pings])}
    for on in failed.keys() - measured.keys():
        for name in program.names:
            bench.results.add(row_of(name)[0], on, None, row_of(name)[1], note=f"failed: {failed[on]}")
    if not measured:
        return
    # Now that the host knows the images: whose would be sent makes a difference that is not the steps'.
    by_build = {t.build: t for t in reversed(transports) if t.name in measured}
    counters = {}
    if program.counted:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = {(build, name): [pool.submit(count, machine, command or command_of(program, [name]), t.pool, extra, name, steps) for steps in (FEW, MANY)]
                     for build, t in by_build.items() for name in program.names}
        counters = {key: per_unit(*(run.result() for run in runs), MANY - FEW) for key, runs in asked.items()}
    for name in program.names:
        for on, those in measured.items():
            build = next(t.build for t in transports if t.name == on)
            if done := [one for one in those if on in one.found.get(name, ())]:
                tell(bench, name, on, done, counters.get((build, name)))
            elif reasons := [one.failed[name, on] for one in those if (name, on) in one.failed]:
                bench.results.add(row_of(name)[0], on, None, row_of(name)[1], note=f"failed: {reasons[0]}")


def tell(bench, name, on, those, counted):
    """The figure of a workload on a transport, of these sets of processes."""
    row, case = row_of(name)
    about = those[0].about[name]
    local, remote = ([answer for one in those for answer in one.found[name][where]] for where in ("local", on))
    unit = bench.results.goals.of(row, on, case).unit
    over = [(a["seconds"] - b["seconds"]) / one.pings[on] / about["calls"] for one in those for a, b in zip(one.found[name][on], one.found[name]["local"])]
    times = ratios(remote, local, "seconds")
    sockets = [seconds for one in those for seconds in one.sockets.get((name, on), [])]
    rounds = {"ratio": times, "RTTs": over, "round trips": [counted[0] / about["calls"]] if counted else []}[unit]
    if sockets and beside(name) and unit == "ratio":
        rounds = [t["seconds"] / beside(name)(n["seconds"], s) for t, n, s in zip(remote, local, sockets)]
    of_bytes = {}
    if sockets:
        of_bytes = {"bytes / Sk": statistics.median(sockets), "k": those[0].streams[on], "T / that": f"{statistics.median(t['seconds'] / s for t, s in zip(remote, sockets)):.3f}",
                    "bytes": about["up"] + about["down"]}
    trips = {"a step's round trips": float(counted[0]), "sent bytes": float(counted[1]), "received bytes": float(counted[2])} if counted else {}
    bench.results.add(row, on, case=case, rounds=rounds, detail={
        "N": middle(local, "seconds"), "T": middle(remote, "seconds"), "T / N": f"{statistics.median(times):.3f}", **of_bytes,
        "p99 N": middle(local, "step_p99"), "p99 T": middle(remote, "step_p99"), "round trip": statistics.median(one.pings[on] for one in those),
        "beyond N": f"{statistics.median(over):.3g} RTTs", **trips,
        "client CPU": middle(remote, "cpu"), "server CPU": statistics.median(value for one in those for value in one.server[name, on]), "local CPU": middle(local, "cpu"),
        f"first {COMPARED} values": compared([one.values[name] for one in those], on),
        "steps a round": int(statistics.median(one.counts[name, on] for one in those)), "sets of processes": len(those)})


def compared(sets, on):
    """Whether the values of each set are the local ones, and if not, whether the local ones of the sets are one another's: many kernels add in any order."""
    if all(values[on] == values["local"] for values in sets):
        return "equal"
    if len(sets) < 2:
        return "different"
    return "different, local ones too" if any(values["local"] != sets[0]["local"] for values in sets) else "different, local ones equal"


def in_processes(bench, stack, program, command, extra, transports, failed):
    """One set of processes. Those that do not start are told in `failed`, {transport: why}."""
    machine = bench.machine

    def started(where=None):
        return stack.enter_context(machine.asked(command, where, extra, program.label))

    local = started()
    if program.local_first:
        said = {"local": local.answer(300)["cases"]}
    remote = {t.name: started(t.pool) for t in transports}
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
        wrong = {on: f"{on}: {cases[i]['error']}" for on, cases in said.items() if "error" in cases[i]}
        one.failed |= {(name, on): wrong.get("local") or wrong[on] for on in ready if on in wrong or "local" in wrong}
        those = {on: t for on, t in ready.items() if (name, on) not in one.failed and t.rtt <= LONGEST.get(row_of(name)[0], t.rtt)}
        if not those:
            continue
        asked, one.about[name] = {"local": local, **{on: remote[on] for on in those}}, said["local"][i]
        try:
            one.found[name] = measured(bench, one, i, name, asked, those, plain, budget)
            one.values[name] = {on: each.ask("values", count=COMPARED, of=i)["values"] for on, each in asked.items()}
        except Failed as error:
            if len(program.names) == 1:
                raise
            one.found.pop(name, None)
            one.failed |= {(name, on): " ".join(str(error).split()) for on in those}
    return one


def measured(bench, one, i, name, asked, ready, plain, budget):
    """Answers of each round of the i-th workload, locally and on each transport; what goes beside them is told to the set."""
    machine, about = bench.machine, one.about[name]

    def steps_for(seconds):
        return max(1, min(bench.sizes.steps_max, int(budget / seconds)))

    # Everyone makes as many steps as the local driver manages in the time, unless a round trip time makes that too long.
    few = 2 if about["warm"] else 1
    mine = asked["local"].ask("steps", 200, count=few, of=i)["seconds"]
    counts = {"local": steps_for(mine)}
    for on in ready:
        theirs = asked[on].ask("steps", 200, count=few, of=i)["seconds"]
        counts[on] = counts["local"] if theirs < 3 * mine else steps_for(theirs)
        one.counts[name, on], one.server[name, on] = counts[on], []

    def remotely(on):
        before = machine.server_cpu(build=ready[on].build)
        answer = asked[on].ask("steps", 200, count=counts[on], of=i)
        one.server[name, on].append((machine.server_cpu(build=ready[on].build) - before) / answer["made"])
        return answer

    def carried(on):
        """How long plain sockets take for what a step carries. The first one warms up."""
        total = 0.0
        for direction, size in (("htod", about["up"]), ("dtoh", about["down"])):
            if size:
                part = min(size, SOCKET_BYTES)
                total += size / part * plain[on].ask("stream", streams=one.streams[on], memory="whole", direction=direction, bytes=part, count=3)["copy"]
        one.sockets.setdefault((name, on), []).append(total)

    with_sockets = [on for on in one.streams if on in ready and (about["up"] or about["down"]) and beside(name)]
    return in_turn(bench.rounds, {"local": lambda: asked["local"].ask("steps", 200, count=counts["local"], of=i),
                                  **{on: lambda on=on: remotely(on) for on in ready}, **{f"sockets {on}": lambda on=on: carried(on) for on in with_sockets}})


def count(machine, command, pool, extra, name, steps):
    """What a run of so many steps counts. It warms up as the others do, and says when it is ready."""
    return machine.counters(command, pool, [("steps", {"count": steps})], extra, label=f"{name}.counted", first_answer=True)
