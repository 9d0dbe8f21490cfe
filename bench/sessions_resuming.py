"""F5: what it costs that a session can be resumed. A program whose session can, and one whose session can not, take
turns; both are at brokers of this machine, by TCP. The figure is of the workload for which it costs most."""

import contextlib
import os
import statistics

from machine import HERE, Failed
from rounds import in_turn, middle

WORKLOADS = ("W1", "W2", "W9.one stream")  # a training, launches in a row, and uploads
COMMAND = ["python3", os.path.join(HERE, "programs", "workloads.py")]
SECONDS = {"with": 60, "without": 0}  # resume_seconds


def memory(pid):
    """Bytes of a process that are no file's."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))


def run(bench, command=None):
    with bench.attempt(("F5", "tcp", "step"), ("F5", "tcp", "memory")):
        costs, more, detail = {name: [] for name in WORKLOADS}, [], {}
        for _ in range(max(2, bench.processes)):
            with contextlib.ExitStack() as stack:
                one_set(bench, stack, [*(command or COMMAND), *WORKLOADS], costs, more, detail)
        most = max(costs, key=lambda name: statistics.median(costs[name]))
        bench.results.add("F5", "tcp", rounds=costs[most], case="step",
                          detail={**{f"{name} %": statistics.median(found) for name, found in costs.items()}, **detail})
        bench.results.add("F5", "tcp", rounds=more, case="memory", detail={"sets of processes": len(more)})


def one_set(bench, stack, command, costs, more, detail):
    machine = bench.machine
    programs = {name: stack.enter_context(machine.asked(
        command, machine.broker(f"resume.{name}", "--resume-seconds", str(seconds)), label=f"resume.{name}"))
        for name, seconds in SECONDS.items()}
    for one in programs.values():
        for case in one.answer(300)["cases"]:
            if "error" in case:
                raise Failed(case["error"])
    for i, workload in enumerate(WORKLOADS):
        probe = programs["without"].ask("steps", count=2, of=i)["seconds"]
        count = max(2, min(bench.sizes.steps_max, round(bench.sizes.step_seconds / 2 / max(probe, 1e-6))))
        found = in_turn(2 * bench.rounds,
                        {name: lambda one=one: one.ask("steps", count=count, of=i) for name, one in programs.items()})
        costs[workload] += [100 * (a["seconds"] / b["seconds"] - 1) for a, b in zip(found["with"], found["without"])]
        detail[f"{workload} s"] = middle(found["without"], "seconds")
    more.append((memory(programs["with"].process.pid) - memory(programs["without"].process.pid)) / (1 << 20))
