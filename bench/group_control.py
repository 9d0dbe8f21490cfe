"""The control path: L1 to L13."""

import collections
import itertools
import os
import statistics
import time

from machine import cpu_of, per_unit, wakeups_of
from rounds import field, in_sets, middle, ratios, spread

ARGUMENT_BYTES = 24  # of the kernel in cuda_program.h
PING_BYTES = 64  # about what a trivial call and its answer have
# A wait mode is that of both ends: the client's setting, the worker's, the ping-pong's.
WAITS = {"blocking": ("0", "0", 0), "spinning": ("100000", "100000", 1)}


def run(bench):
    if bench.wants("L1", "L2", "L9"):
        launching(bench)
    if bench.wants("L3", "L4", "L5"):
        for wait in WAITS:
            shared = [("L4", "shm"), ("L5", "shm")] if "shm" in bench.machine.kinds and wait == "spinning" else []
            with bench.attempt(*([("L3", "tcp", wait), ("L5", "tcp", wait)] if "tcp" in bench.machine.kinds else []),
                               *shared):
                waiting(bench, wait)
    if bench.wants("L6", "L7", "L8"):
        counting(bench)
    for row, case in AWAITED:
        if bench.wants(row):
            told_by_the_stream(bench, row, case)
    if bench.wants("L13"):
        coming_and_going(bench)
    for transport in bench.machine.transports([], broker="idle") if bench.wants("L10") else ():
        if transport.way == "tcp":
            with bench.attempt(("L10", transport.name), ("L10", transport.name, "wake-ups")):
                idle(bench, transport)


def program(bench):
    return [os.path.join(bench.machine.bench, "control")]


def started(bench, stack, pools):
    """The program once for each of {name: pool}, the local driver where that is None."""
    return {name: stack.enter_context(bench.machine.asked(program(bench), pool)) for name, pool in pools.items()}


def launching(bench):
    """What launches cost, and how many there are in a second."""
    machine, sizes, add = bench.machine, bench.sizes, bench.results.add
    with bench.attempt(*((row, on) for row in ("L1", "L2", "L9") for on in machine.kinds)):
        transports = machine.transports(bench.rtts, bench.rate)
        ways = {t.name: t.pool for t in transports}

        def turns(case, values_of):
            def parts(stack):
                everyone = started(bench, stack, {"local": None, **ways})
                for name, one in everyone.items():
                    one.ask(case, **values_of(name))  # warms up
                return {name: lambda name=name, one=one: one.ask(case, **values_of(name))
                        for name, one in everyone.items()}

            return in_sets(bench, parts)

        if bench.wants("L1"):
            # A batch ends with a round trip, which is not measured and should not take all the time.
            rtts = {t.name: t.rtt for t in transports}
            found = turns("launch_cost",
                          lambda name: {"batches": min(sizes.batches, int(0.5 / (rtts.get(name) or 1e-3)))})
            for on in ways:
                add("L1", on, rounds=ratios(found[on], found["local"], "launch_cpu"), detail={
                    "N": middle(found["local"], "launch_cpu"), "T": middle(found[on], "launch_cpu"),
                    "on the clock N": middle(found["local"], "launch_clock"),
                    "T on the clock": middle(found[on], "launch_clock"),
                    "p99 N": middle(found["local"], "launch_clock_p99"),
                    "p99 T": middle(found[on], "launch_clock_p99")})
        for row, case, count, all_launches in (("L2", "launches", sizes.launches, sizes.launches),
                                               ("L9", "threads", sizes.thread_launches, 8 * sizes.thread_launches)):
            if not bench.wants(row):
                continue
            found = turns(case, lambda _: {"count": count})
            for on in ways:
                add(row, on, rounds=ratios(found["local"], found[on], "seconds"), detail={
                    "N launches/s": all_launches / middle(found["local"], "seconds"),
                    "T launches/s": all_launches / middle(found[on], "seconds"),
                    "client CPU a launch": middle(found[on], "cpu") / all_launches})


def calls(bench, transports, case, spin, broker="default", settings=None, pause=0):
    """Calls that are waited for, over these transports, which go the same way: for each its name; rounds of its calls,
    of the local ones, of the ping-pong; what they show."""
    machine = bench.machine
    server = {t.name: [] for t in transports}

    def parts(stack):
        local = stack.enter_context(machine.asked(program(bench)))
        remote = {t.name: stack.enter_context(machine.asked(program(bench), t.pool, settings)) for t in transports}
        plain = stack.enter_context(machine.plain(transports[0]))
        # What takes long is not done so often.
        first = [one.ask(case, count=10)
                 for one in remote.values()] + [plain.ask("pingpong", count=10, bytes=PING_BYTES, spin=spin)]
        slowest = max(field(first, "seconds"))
        count = max(10, min(bench.sizes.calls, int(0.25 / slowest)))

        def remotely(t):
            if len(transports) > 1:
                time.sleep(pause)  # the other build's ends have stopped spinning then
            before = machine.server_cpu(t.broker, t.build)
            answer = remote[t.name].ask(case, count=count)
            server[t.name].append((machine.server_cpu(t.broker, t.build) - before) / count)
            return answer | {"cpu": answer["cpu"] / count}

        return {"local": lambda: local.ask(case, count=count), **{t.name: lambda t=t: remotely(t) for t in transports},
                "ping": lambda: plain.ask("pingpong", count=count, bytes=PING_BYTES, spin=spin)}

    found = in_sets(bench, parts)
    for on in server:
        yield on, found[on], found["local"], found["ping"], {
            "P": middle(found["ping"], "seconds"), "P p99": middle(found["ping"], "seconds_p99"),
            "T": middle(found[on], "seconds"),
            "T p99": middle(found[on], "seconds_p99"), "N": middle(found["local"], "seconds"),
            "client CPU a call": middle(found[on], "cpu"), "server CPU a call": statistics.median(server[on])}


def beyond(remote, local, ping):
    """(T - N) / P of each round."""
    return [(t - n) / p for t, n, p in zip(*(field(of, "seconds") for of in (remote, local, ping)))]


def too_few(spin):
    return "fewer than four processors, for which spinning ends compete" if spin and os.cpu_count() < 4 else ""


def waiting(bench, wait):
    """Calls that wait for an answer, against a ping-pong whose ends wait in the same way."""
    machine, add = bench.machine, bench.results.add
    client, worker, spin = WAITS[wait]
    note = too_few(spin)

    def turns(transports, case):
        return calls(bench, transports, case, spin, wait, {"FARGPU_SPIN_US": client}, 1.5e-6 * int(worker))

    for way, those in itertools.groupby(machine.transports(bench.rtts, bench.rate, wait, ("--spin-us", worker)),
                                        lambda t: t.way):
        those, shared = list(those), way == "shm"
        if shared and not spin:
            continue  # how long waking takes is the same for all
        if shared and bench.wants("L4"):
            for on, remote, _, _, detail in turns(those, "trivial"):
                add("L4", on, rounds=[1e6 * t for t in field(remote, "seconds")], detail=detail, note=note)
        if not shared and bench.wants("L3"):
            for on, remote, _, ping, detail in turns(those, "trivial"):
                add("L3", on, case=wait, rounds=ratios(remote, ping, "seconds"), detail=detail, note=note)
        if bench.wants("L5"):
            for on, remote, local, ping, detail in turns(those, "launch_sync"):
                if shared:
                    add("L5", on, rounds=ratios(remote, local, "seconds"), detail=detail, note=note)
                else:
                    add("L5", on, case=wait, detail=detail, note=note, rounds=beyond(remote, local, ping))


# What programs wait for that do not wait for a call, as fargpu is set when nothing is set. The program sleeps (L11),
# and so do the ends of the ping-pong, or it spins (L12), as the local driver does, and so do they.
AWAITED = {("L11", ""): ("host_function", 0), ("L12", "synchronise"): ("event_synchronize", 1),
           ("L12", "query"): ("event_query", 1)}


def told_by_the_stream(bench, row, case):
    """Functions of the program and events behind work of a stream."""
    add = bench.results.add
    name, spin = AWAITED[row, case]
    for way, those in itertools.groupby(bench.machine.transports(bench.rtts, bench.rate), lambda t: t.way):
        those = list(those)
        with bench.attempt(*((row, t.name, case) for t in those)):
            for on, remote, local, ping, detail in calls(bench, those, name, spin, pause=0.03):
                if way != "shm":
                    rounds = beyond(remote, local, ping)
                elif row == "L11":
                    rounds = [1e6 * (t - n) for t, n in zip(field(remote, "seconds"), field(local, "seconds"))]
                else:
                    rounds = ratios(remote, local, "seconds")
                add(row, on, case=case, rounds=rounds, detail=detail |
                    {"T / N": spread(ratios(remote, local, "seconds"))}, note=too_few(spin))


def coming_and_going(bench):
    """Memory that a framework takes and gives back, again and again."""
    ways = {t.name: t for t in bench.machine.transports([])}
    server = {on: [] for on in ways}

    def parts(stack):
        programs = started(bench, stack, {"local": None, **{on: t.pool for on, t in ways.items()}})
        for one in programs.values():
            one.ask("memory_comes_and_goes", count=2)

        def measured(name):
            before = bench.machine.server_cpu(ways[name].broker, ways[name].build) if name in ways else 0
            answer = programs[name].ask("memory_comes_and_goes", count=bench.sizes.emptied_caches)
            if name in ways:
                used = bench.machine.server_cpu(ways[name].broker, ways[name].build) - before
                server[name].append(used / bench.sizes.emptied_caches)
            return answer

        return {name: lambda name=name: measured(name) for name in programs}

    with bench.attempt(*(("L13", on) for on in ways)):
        found = in_sets(bench, parts)
        for on in ways:
            bench.results.add("L13", on, rounds=ratios(found[on], found["local"], "seconds"), detail={
                "N": middle(found["local"], "seconds"), "T": middle(found[on], "seconds"),
                "p99 N": middle(found["local"], "seconds_p99"),
                "p99 T": middle(found[on], "seconds_p99"),
                "client CPU": middle(found[on], "cpu") / bench.sizes.emptied_caches,
                "server CPU": statistics.median(server[on]),
                "local CPU": middle(found["local"], "cpu") / bench.sizes.emptied_caches})


IDLE_CALLS = {"idle synchronise": ("idle_synchronize", 2), "attributes": ("attributes", 3), "errors": ("errors", 2),
              "capture state": ("capture_state", 1),
              "alloc and free": ("allocations", 2)}


def counting(bench):
    """Round trips and bytes, which the client counts: the difference of a run with few calls and one with many."""
    machine, add = bench.machine, bench.results.add
    transports = machine.transports([])
    shared, tcp = ({t.name: t.pool for t in transports if t.way == way} for way in ("shm", "tcp"))
    if bench.wants("L6") and shared:
        with bench.attempt(*(("L6", on) for on in shared)):
            found = items(bench, shared)
            for on in shared:
                add("L6", on, rounds=ratios(found[on], found["local"], "seconds"), detail={
                    "N": middle(found["local"], "seconds"), "T": middle(found[on], "seconds"),
                    "T p99": middle(found[on], "seconds_p99")})

    def each(on, case, few, many, calls=1):
        runs = [machine.counters(program(bench), tcp[on], [(case, {"count": count})]) for count in (few, many)]
        return per_unit(*runs, (many - few) * calls)

    if bench.wants("L6") and tcp:
        with bench.attempt(*(("L6", on) for on in tcp)):
            found = items(bench, tcp)
            for on in tcp:
                trips, sent, received = each(on, "item", 10, 110)
                add("L6", on, trips, detail={"N": middle(found["local"], "seconds"), "T": middle(found[on], "seconds"),
                                             "T p99": middle(found[on], "seconds_p99"), "sent bytes": sent,
                                             "received bytes": received})
    for on in tcp:
        for case, (name, calls) in IDLE_CALLS.items() if bench.wants("L7") else ():
            with bench.attempt(("L7", on, case)):
                trips, sent, _ = each(on, name, 10, 110, calls)
                add("L7", on, trips, case, detail={"sent bytes": sent})
        if bench.wants("L8"):
            with bench.attempt(("L8", on)):
                few, many = 1000, 1000 + bench.sizes.launches
                trips, sent, received = each(on, "launches", few, many)
                add("L8", on, sent - ARGUMENT_BYTES, detail={
                    "argument bytes": ARGUMENT_BYTES, "received bytes": received, "round trips": trips})


def items(bench, ways):
    """Copies of four bytes to the host, locally and at each of {name: pool}."""
    def parts(stack):
        programs = started(bench, stack, {"local": None, **ways})
        return {name: lambda one=one: one.ask("item", count=bench.sizes.calls) for name, one in programs.items()}

    return in_sets(bench, parts)


def idle(bench, transport):
    """A session in which nothing happens, and beside it what a program that uses the local driver does then."""
    machine = bench.machine
    with machine.asked(program(bench), transport.pool) as client, machine.asked(program(bench)) as local:
        for one in (client, local):
            one.ask("launches", count=10)
        # for two seconds after work the broker looks at what the driver took
        time.sleep(min(3, bench.sizes.idle_seconds))
        pids = {"client": [client.process.pid], "server": machine.server_pids("idle", transport.build),
                "local": [local.process.pid]}

        def so_far():
            return {name: (sum(map(cpu_of, of)), sum(map(wakeups_of, of), collections.Counter()))
                    for name, of in pids.items()}

        before, begin = so_far(), time.monotonic()
        time.sleep(bench.sizes.idle_seconds)
        after, seconds = so_far(), time.monotonic() - begin
        cpu = {name: (after[name][0] - before[name][0]) / seconds for name in pids}
        wakeups = {name: {thread: times / seconds for thread, times in (after[name][1] - before[name][1]).most_common()}
                   for name in pids}
        ours = {f"{name}'s {thread}": times for name in ("client", "server") for thread, times in wakeups[name].items()
                if not thread.startswith("cuda")}
        bench.results.add("L10", transport.name, sum(ours.values()), "wake-ups",
                          detail={of: f"{times:.2g}" for of, times in ours.items()})
        bench.results.add("L10", transport.name, 100 * (cpu["client"] + cpu["server"] - cpu["local"]), detail={
            **{f"{name} CPU a second": value for name, value in cpu.items()},
            **{f"{name} wake-ups/s": f"{sum(each.values()):.2g}" for name, each in wakeups.items()},
            **{f"{name} threads' wake-ups/s": " ".join(f"{thread} {times:.2g}" for thread, times in each.items())
               for name, each in wakeups.items()}, "over": seconds})
