"""L14: a machine that is full. Programs that compute between their steps, of which so many run at once that they, their
workers and the broker have few processors to spare."""

import os
import statistics

from program_steps import Program, command_of
from machine import Failed
from rounds import field, in_sets

CROWD = Program(("L14",))
PART = 13 / 16  # programs for each processor


def run(bench, command=None):
    machine = bench.machine
    ways = {t.name: t for t in machine.transports([]) if t.way == "tcp"}
    size = max(2, round(PART * os.cpu_count()))
    server = {on: [] for on in ways}

    def at_once(programs, count):
        for one in programs:
            one.tell("steps", count=count)
        answers = [one.answer(300) for one in programs]
        return {"seconds": sum(field(answers, "seconds")), "cpu": sum(field(answers, "cpu")),
                "slowest": max(field(answers, "seconds")),
                "made": sum(field(answers, "made"))}

    def parts(stack):
        started = {where: [stack.enter_context(machine.asked([*(command or command_of(CROWD)), *CROWD.names], pool,
                                                             label="L14")) for _ in range(size)]
                   for where, pool in (("local", None), *((on, t.pool) for on, t in ways.items()))}
        for programs in started.values():
            for one in programs:
                one.answer(300)
        few = at_once(started["local"], 5)["seconds"] / size
        count = max(1, min(bench.sizes.steps_max, int(bench.sizes.step_seconds / few)))

        def remotely(on):
            before = machine.server_cpu(build=ways[on].build)
            answer = at_once(started[on], count)
            server[on].append((machine.server_cpu(build=ways[on].build) - before) / answer["made"])
            return answer

        turns = {"local": lambda: at_once(started["local"], count), **{on: lambda on=on: remotely(on) for on in ways}}
        values = {where: [one.ask("values", count=1)["values"] for one in programs]
                  for where, programs in started.items()}
        if any(value != values["local"][0] for found in values.values() for value in found):
            raise Failed("programs of the crowd computed different values")
        return turns

    with bench.attempt(*(("L14", on) for on in ways)):
        found = in_sets(bench, parts)
        for on in ways:
            bench.results.add("L14", on,
                              rounds=[t / n for t, n in zip(field(found[on], "seconds"),
                                                            field(found["local"], "seconds"))], detail={
                "programs": size, "processors": os.cpu_count(),
                **{f"{name} a step": statistics.median(field(found[where], "seconds")) / size
                   for name, where in (("N", "local"), ("T", on))},
                **{f"{name} of the slowest": statistics.median(field(found[where], "slowest"))
                   for name, where in (("N", "local"), ("T", on))},
                "client CPU": statistics.median(field(found[on], "cpu")) / size,
                "server CPU": statistics.median(server[on]),
                "local CPU": statistics.median(field(found["local"], "cpu")) / size})
