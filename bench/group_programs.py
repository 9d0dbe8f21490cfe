"""PyTorch programs: W1 to W8. A process for each way, all at once; their steps take turns. What differs from process to process, such as
where its memory lies, is seen only with several sets of them."""

import concurrent.futures
import contextlib
import dataclasses
import os
import statistics

from machine import HERE, Failed, per_unit
from rounds import in_turn, middle, ratios

# Calls, tokens or replays a step, by which round trips are counted (as in programs/workloads.py).
STEP_CALLS = {"W5": 32, "W7.copies": 100, "W7.synchronise": 100}
NAMES = ["W1", "W2", "W2.fixed kernels", "W3", "W4", "W5", "W6.compile", "W6.graph", "W7.copies", "W7.synchronise", "W8"]
FEW, MANY = 2, 6  # steps of the two runs that count round trips
COMPARED = 8  # values of both sides


def run(bench):
    for name in NAMES:
        row, _, case = name.partition(".")
        if bench.wants(row):
            print(f"  {name} ...", flush=True)
            with bench.attempt(*bench.places(row, case=case)):
                workload(bench, row, case, name)


@dataclasses.dataclass
class Set:
    """What the processes of a program, one at the local driver and one for each transport, measured in turn."""

    pings: dict  # round trip times in seconds, of plain sockets, by transport
    counts: dict  # steps a round
    server: dict  # CPU seconds a step of each round
    found: dict = dataclasses.field(default_factory=dict)  # answers of each round, of `local` too
    values: dict = dataclasses.field(default_factory=dict)  # the first that steps computed, of `local` too


def workload(bench, row, case, name, command=None):
    machine, add = bench.machine, bench.results.add
    command = command or ["python3", os.path.join(HERE, "programs", "workloads.py"), name]
    caches = os.path.join(machine.out, "caches")
    extra = {"TORCHINDUCTOR_CACHE_DIR": caches + "/inductor", "TRITON_CACHE_DIR": caches + "/triton"}
    transports = machine.transports(bench.rtts, bench.rate)
    sets, failed = [], {}
    for _ in range(bench.processes):
        try:
            with contextlib.ExitStack() as stack:
                sets.append(in_processes(bench, stack, name, command, extra, [t for t in transports if t.name not in failed], failed))
        except Failed:
            if not sets:
                raise
            break  # what was measured before stands, and says of how many sets it is
        if len(failed) == len(transports):
            break
    measured = {t.name: those for t in transports if (those := [one for one in sets if t.name in one.found])}
    for on in failed.keys() - measured.keys():
        add(row, on, None, case, note=f"failed: {failed[on]}")
    if not measured:
        return
    # Now that the host knows the images: whose would be sent makes a difference that is not the steps'.
    by_build = {t.build: t for t in reversed(transports) if t.name in measured}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        counters = {build: [pool.submit(count, machine, command, t.pool, extra, name, steps) for steps in (FEW, MANY)]
                    for build, t in by_build.items()}
    for t, those in ((t, measured[t.name]) for t in transports if t.name in measured):
        on = t.name
        trips, sent, received = per_unit(*(run.result() for run in counters[t.build]), MANY - FEW)
        local, remote = ([answer for one in those for answer in one.found[where]] for where in ("local", on))
        unit = bench.results.goals.of(row, on, case).unit
        over = [(a["seconds"] - b["seconds"]) / one.pings[on] for one in those for a, b in zip(one.found[on], one.found["local"])]
        times = ratios(remote, local, "seconds")
        rounds = {"ratio": times, "RTTs": over, "round trips": [trips / STEP_CALLS.get(name, 1)]}[unit]
        add(row, on, case=case, rounds=rounds, detail={
            "N": middle(local, "seconds"), "T": middle(remote, "seconds"), "T / N": f"{statistics.median(times):.3f}",
            "p99 N": middle(local, "step_p99"), "p99 T": middle(remote, "step_p99"), "round trip": statistics.median(one.pings[on] for one in those),
            "beyond N": f"{statistics.median(over):.3g} RTTs",
            "a step's round trips": float(trips), "sent bytes": float(sent), "received bytes": float(received),
            "client CPU": middle(remote, "cpu"), "server CPU": statistics.median(value for one in those for value in one.server[on]), "local CPU": middle(local, "cpu"),
            f"first {COMPARED} values": compared([one.values for one in those], on),
            "steps a round": int(statistics.median(one.counts[on] for one in those)), "sets of processes": len(those)})


def compared(sets, on):
    """Whether the values of each set are the local ones, and if not, whether the local ones of the sets are one another's: many kernels add in any order."""
    if all(values[on] == values["local"] for values in sets):
        return "equal"
    if len(sets) < 2:
        return "different"
    return "different, local ones too" if any(values["local"] != sets[0]["local"] for values in sets) else "different, local ones equal"


def in_processes(bench, stack, name, command, extra, transports, failed):
    """One set of processes. Those that do not start are told in `failed`, {transport: why}."""
    machine = bench.machine

    def started(where=None):
        return stack.enter_context(machine.asked(command, where, extra, f"{name}"))

    local = started()
    if name in ("W6.compile", "W8"):
        local.answer(150)  # its compiler's cache serves the others
    remote = {t.name: started(t.pool) for t in transports}
    if name not in ("W6.compile", "W8"):
        local.answer(150)
    ready = {}
    for t in transports:
        try:
            remote[t.name].answer(200)
            ready[t.name] = t
        except Failed as error:
            failed[t.name] = " ".join(str(error).split())
    budget = bench.sizes.step_seconds

    def steps_for(seconds):
        return max(1, min(bench.sizes.steps_max, int(budget / seconds)))

    # Everyone makes as many steps as the local driver manages in the time, unless a round trip time makes that too long.
    mine = local.ask("steps", count=2)["seconds"]
    counts = {"local": steps_for(mine)}
    for on in ready:
        theirs = remote[on].ask("steps", 200, count=2)["seconds"]
        counts[on] = counts["local"] if theirs < 3 * mine else steps_for(theirs)
    one = Set({on: stack.enter_context(machine.plain(t)).ask("pingpong", count=20, bytes=64, spin=0)["seconds"] for on, t in ready.items()},
              counts, {on: [] for on in ready})

    def remotely(on):
        before = machine.server_cpu(build=ready[on].build)
        answer = remote[on].ask("steps", 200, count=counts[on])
        one.server[on].append((machine.server_cpu(build=ready[on].build) - before) / answer["made"])
        return answer

    one.found = in_turn(bench.rounds, {"local": lambda: local.ask("steps", 200, count=counts["local"]), **{on: lambda on=on: remotely(on) for on in ready}})
    one.values = {on: asked.ask("values", count=COMPARED)["values"] for on, asked in {"local": local, **{on: remote[on] for on in ready}}.items()}
    return one


def count(machine, command, pool, extra, name, steps):
    """What a run of so many steps counts. It warms up as the others do, and says when it is ready."""
    return machine.counters(command, pool, [("steps", {"count": steps})], extra, label=f"{name}.counted", first_answer=True)
