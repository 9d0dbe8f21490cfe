"""PyTorch and JAX programs: W1 to W16, L14, B13. A process for each way, all at once; their steps take turns. What
differs from process to process, such as where its memory lies, is seen only with several sets of them."""

import concurrent.futures
import contextlib
import dataclasses
import statistics

import programs_crowd
import programs_known
import programs_paced
from machine import Failed, per_unit
from program_steps import COMPARED, Program, beside, command_of, compared, in_processes, row_of, settings_of
from rounds import middle, ratios

PROGRAMS = [
    *(Program((name,)) for name in ("W1", "W2", "W2.fixed kernels", "W3", "W4", "W5")),
    Program(("W6.compile",), local_first=True),
    *(Program((name,)) for name in ("W6.graph", "W7.copies", "W7.synchronise")), Program(("W8",), local_first=True),
    Program(("W9.one stream", "W9.a second stream", "W10"), counted=False),
    Program(("W11", "W12.state_dict", "W12.load_state_dict", "W12.safetensors", "W15.nonzero", "W15.unique", "W15.any"),
            counted=False),
    Program(("W13.jit", "W13.training loop", "W13.device_put", "W13.device_get"), "jax_loops.py", counted=False),
    Program(("W14.eager", "W14.compiled"), local_first=True)]

FEW, MANY = 2, 6  # steps of the two runs that count round trips


def run(bench):
    for program in PROGRAMS:
        wanted = dataclasses.replace(program,
                                     names=tuple(name for name in program.names if bench.wants(row_of(name)[0])))
        if wanted.names:
            print(f"  {wanted.label} ...", flush=True)
            with bench.attempt(*(place for name in wanted.names
                                 for place in bench.places(row_of(name)[0], case=row_of(name)[1]))):
                workload(bench, wanted)
    for row, measure in (("L14", programs_crowd.run), ("B13", programs_paced.run), ("W16", programs_known.run)):
        if bench.wants(row) and "tcp" in bench.machine.kinds:
            print(f"  {row} ...", flush=True)
            measure(bench)


def workload(bench, program, command=None):
    """Measures a program, or one that is started by another command and answers alike."""
    machine = bench.machine
    extra, command = settings_of(bench, program), command or command_of(program)
    transports = machine.transports(bench.rtts, bench.rate)
    sets, failed = [], {}
    for _ in range(bench.processes):
        try:
            with contextlib.ExitStack() as stack:
                sets.append(in_processes(bench, stack, program, command, extra,
                                         [t for t in transports if t.name not in failed], failed))
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
            asked = {(build, name): [pool.submit(count, machine, [*command, name], t.pool, extra, name, steps)
                                     for steps in (FEW, MANY)]
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
    over = [(a["seconds"] - b["seconds"]) / one.pings[on] / about["calls"] for one in those
            for a, b in zip(one.found[name][on], one.found[name]["local"])]
    times = ratios(remote, local, "seconds")
    sockets = [seconds for one in those for seconds in one.sockets.get((name, on), [])]
    rounds = {"ratio": times, "RTTs": over, "round trips": [counted[0] / about["calls"]] if counted else []}[unit]
    if sockets and beside(name) and unit == "ratio":
        rounds = [t["seconds"] / beside(name)(n["seconds"], s) for t, n, s in zip(remote, local, sockets)]
    of_bytes = {}
    if sockets:
        of_bytes = {"bytes / Sk": statistics.median(sockets), "k": those[0].streams[on],
                    "T / that": f"{statistics.median(t['seconds'] / s for t, s in zip(remote, sockets)):.3f}",
                    "bytes": about["up"] + about["down"]}
    trips = {"a step's round trips": float(counted[0]), "sent bytes": float(counted[1]),
             "received bytes": float(counted[2])} if counted else {}
    bench.results.add(row, on, case=case, rounds=rounds, detail={
        "N": middle(local, "seconds"), "T": middle(remote, "seconds"), "T / N": f"{statistics.median(times):.3f}",
        **of_bytes,
        "p99 N": middle(local, "step_p99"), "p99 T": middle(remote, "step_p99"),
        "round trip": statistics.median(one.pings[on] for one in those),
        "beyond N": f"{statistics.median(over):.3g} RTTs", **trips,
        "client CPU": middle(remote, "cpu"),
        "server CPU": statistics.median(value for one in those for value in one.server[name, on]),
        "local CPU": middle(local, "cpu"),
        f"first {COMPARED} values": compared([one.values[name] for one in those], on),
        "steps a round": int(statistics.median(one.counts[name, on] for one in those)),
        "sets of processes": len(those)})


def count(machine, command, pool, extra, name, steps):
    """What a run of so many steps counts. It warms up as the others do, and says when it is ready."""
    return machine.counters(command, pool, [("steps", {"count": steps})], extra, label=f"{name}.counted",
                            first_answer=True)
