"""PyTorch programs: W1 to W8. A process for each way, all at once; their steps take turns."""

import concurrent.futures
import contextlib
import os
import statistics

from machine import HERE, Failed, per_unit
from rounds import in_turn, middle, ratios

# Calls, tokens or replays a step, by which round trips are counted (as in programs/workloads.py).
STEP_CALLS = {"W5": 32, "W7.copies": 100, "W7.synchronise": 100}
NAMES = ["W1", "W2", "W3", "W4", "W5", "W6.compile", "W6.graph", "W7.copies", "W7.synchronise", "W8"]
FEW, MANY = 2, 6  # steps of the two runs that count round trips
COMPARED = 8  # values of both sides


def run(bench):
    for name in NAMES:
        row, _, case = name.partition(".")
        if bench.wants(row):
            print(f"  {name} ...", flush=True)
            with bench.attempt(*bench.places(row, case=case)):
                workload(bench, row, case, name)


def workload(bench, row, case, name, command=None):
    machine, add = bench.machine, bench.results.add
    command = command or ["python3", os.path.join(HERE, "programs", "workloads.py"), name]
    caches = os.path.join(machine.out, "caches")
    extra = {"TORCHINDUCTOR_CACHE_DIR": caches + "/inductor", "TRITON_CACHE_DIR": caches + "/triton"}
    transports = machine.transports(bench.rtts, bench.rate)
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor() as pool:
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
                add(row, t.name, None, case, note=f"failed: {' '.join(str(error).split())}")
        if not ready:
            return
        # Now that the host knows the images: whose would be sent makes a difference that is not the steps'.
        counters = list(pool.map(lambda steps: count(machine, command, transports[0].pool, extra, name, steps), (FEW, MANY)))
        trips, sent, received = per_unit(*counters, MANY - FEW)
        budget = bench.sizes.step_seconds

        def steps_for(seconds):
            return max(2, min(bench.sizes.steps_max, int(budget / seconds)))

        # Everyone makes as many steps as the local driver manages in the time, unless a round trip time makes that too long.
        mine = local.ask("steps", count=2)["seconds"]
        counts = {"local": steps_for(mine)}
        for on in ready:
            theirs = remote[on].ask("steps", 200, count=2)["seconds"]
            counts[on] = counts["local"] if theirs < 3 * mine else steps_for(theirs)
        pings = {on: stack.enter_context(machine.plain(t)).ask("pingpong", count=20, bytes=64, spin=0)["seconds"] for on, t in ready.items()}
        server = {on: [] for on in ready}

        def remotely(on):
            before = machine.server_cpu()
            answer = remote[on].ask("steps", 200, count=counts[on])
            server[on].append((machine.server_cpu() - before) / counts[on])
            return answer

        found = in_turn(bench.rounds, {"local": lambda: local.ask("steps", 200, count=counts["local"]), **{on: lambda on=on: remotely(on) for on in ready}})
        compared = local.ask("values", count=COMPARED)["values"]
        for on, t in ready.items():
            rtt = pings[on]
            unit = bench.results.goals.of(row, on, case).unit
            over = [(a["seconds"] - b["seconds"]) / rtt for a, b in zip(found[on], found["local"])]
            times = ratios(found[on], found["local"], "seconds")
            rounds = {"ratio": times, "RTTs": over, "round trips": [trips / STEP_CALLS.get(name, 1)]}[unit]
            both = list(zip(remote[on].ask("values", count=COMPARED)["values"], compared))
            equal = "equal" if all(a == b for a, b in both) else "different"
            add(row, on, case=case, rounds=rounds, detail={
                "N": middle(found["local"], "seconds"), "T": middle(found[on], "seconds"), "T / N": f"{statistics.median(times):.3f}",
                "p99 N": middle(found["local"], "step_p99"), "p99 T": middle(found[on], "step_p99"), "round trip": rtt, "beyond N": f"{statistics.median(over):.3g} RTTs",
                "a step's round trips": float(trips), "sent bytes": float(sent), "received bytes": float(received),
                "client CPU": middle(found[on], "cpu"), "server CPU": statistics.median(server[on]), "local CPU": middle(found["local"], "cpu"),
                f"first {len(both)} values": equal, "steps a round": counts[on]})


def count(machine, command, pool, extra, name, steps):
    """What a run of so many steps counts. It warms up as the others do, and says when it is ready."""
    return machine.counters(command, pool, [("steps", {"count": steps})], extra, label=f"{name}.counted", first_answer=True)
