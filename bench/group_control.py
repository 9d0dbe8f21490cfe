"""The control path: L1 to L10."""

import collections
import os
import statistics
import time

from machine import cpu_of, per_unit, wakeups_of
from rounds import field, in_sets, middle, ratios

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
            with bench.attempt(*([("L3", "tcp", wait), ("L5", "tcp", wait)] if "tcp" in bench.machine.kinds else []), *shared):
                waiting(bench, wait)
    if bench.wants("L6", "L7", "L8"):
        counting(bench)
    if bench.wants("L10") and "tcp" in bench.machine.kinds:
        with bench.attempt(("L10", "tcp")):
            idle(bench)


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
                return {name: lambda name=name, one=one: one.ask(case, **values_of(name)) for name, one in everyone.items()}

            return in_sets(bench, parts)

        if bench.wants("L1"):
            # A batch ends with a round trip, which is not measured and should not take all the time.
            rtts = {t.name: t.rtt for t in transports}
            found = turns("launch_cost", lambda name: {"batches": min(sizes.batches, int(0.5 / (rtts.get(name) or 1e-3)))})
            for on in ways:
                add("L1", on, rounds=ratios(found[on], found["local"], "launch_cpu"), detail={
                    "N": middle(found["local"], "launch_cpu"), "T": middle(found[on], "launch_cpu"),
                    "on the clock N": middle(found["local"], "launch_clock"), "T on the clock": middle(found[on], "launch_clock"),
                    "p99 N": middle(found["local"], "launch_clock_p99"), "p99 T": middle(found[on], "launch_clock_p99")})
        for row, case, count, all_launches in (("L2", "launches", sizes.launches, sizes.launches), ("L9", "threads", sizes.thread_launches, 8 * sizes.thread_launches)):
            if not bench.wants(row):
                continue
            found = turns(case, lambda _: {"count": count})
            for on in ways:
                add(row, on, rounds=ratios(found["local"], found[on], "seconds"), detail={
                    "N launches/s": all_launches / middle(found["local"], "seconds"), "T launches/s": all_launches / middle(found[on], "seconds"),
                    "client CPU a launch": middle(found[on], "cpu") / all_launches})


def waiting(bench, wait):
    """Calls that wait for an answer, against a ping-pong whose ends wait in the same way."""
    machine, add = bench.machine, bench.results.add
    client, worker, spin = WAITS[wait]
    note = "fewer than four processors, for which spinning ends compete" if spin and os.cpu_count() < 4 else ""

    def turns(transport, case):
        server = []

        def parts(stack):
            local = stack.enter_context(machine.asked(program(bench)))
            remote = stack.enter_context(machine.asked(program(bench), transport.pool, {"FARGPU_SPIN_US": client}))
            plain = stack.enter_context(machine.plain(transport))
            # What takes long is not done so often.
            slowest = max(remote.ask(case, count=10)["seconds"], plain.ask("pingpong", count=10, bytes=PING_BYTES, spin=spin)["seconds"])
            calls = max(10, min(bench.sizes.calls, int(0.25 / slowest)))

            def remotely():
                before = machine.server_cpu(wait)
                answer = remote.ask(case, count=calls)
                server.append((machine.server_cpu(wait) - before) / calls)
                return answer | {"cpu": answer["cpu"] / calls}

            return {"local": lambda: local.ask(case, count=calls), "remote": remotely,
                    "ping": lambda: plain.ask("pingpong", count=calls, bytes=PING_BYTES, spin=spin)}

        found = in_sets(bench, parts)
        return found, {"P": middle(found["ping"], "seconds"), "P p99": middle(found["ping"], "seconds_p99"), "T": middle(found["remote"], "seconds"),
                       "T p99": middle(found["remote"], "seconds_p99"), "N": middle(found["local"], "seconds"),
                       "client CPU a call": middle(found["remote"], "cpu"), "server CPU a call": statistics.median(server)}

    for transport in machine.transports(bench.rtts, bench.rate, wait, ("--spin-us", worker)):
        on, shared = transport.name, transport.name == "shm"
        if shared and not spin:
            continue  # how long waking takes is the same for all
        if shared and bench.wants("L4"):
            found, detail = turns(transport, "trivial")
            add("L4", on, rounds=[1e6 * t for t in field(found["remote"], "seconds")], detail=detail, note=note)
        if not shared and bench.wants("L3"):
            found, detail = turns(transport, "trivial")
            add("L3", on, case=wait, rounds=ratios(found["remote"], found["ping"], "seconds"), detail=detail, note=note)
        if bench.wants("L5"):
            found, detail = turns(transport, "launch_sync")
            if shared:
                add("L5", on, rounds=ratios(found["remote"], found["local"], "seconds"), detail=detail, note=note)
            else:
                add("L5", on, case=wait, detail=detail, note=note, rounds=[
                    (t - n) / p for t, n, p in zip(*(field(found[who], "seconds") for who in ("remote", "local", "ping")))])


IDLE_CALLS = {"idle synchronise": ("idle_synchronize", 2), "attributes": ("attributes", 3), "errors": ("errors", 2), "capture state": ("capture_state", 1),
              "alloc and free": ("allocations", 2)}


def counting(bench):
    """Round trips and bytes, which the client counts: the difference of a run with few calls and one with many."""
    machine, add = bench.machine, bench.results.add
    pool = machine.broker()
    if bench.wants("L6") and "shm" in machine.kinds:
        with bench.attempt(("L6", "shm")):
            found = items(bench, machine.socket())
            add("L6", "shm", rounds=ratios(found["remote"], found["local"], "seconds"), detail={
                "N": middle(found["local"], "seconds"), "T": middle(found["remote"], "seconds"), "T p99": middle(found["remote"], "seconds_p99")})
    if "tcp" not in machine.kinds:
        return

    def each(case, few, many, calls=1):
        runs = [machine.counters(program(bench), pool, [(case, {"count": count})]) for count in (few, many)]
        return per_unit(*runs, (many - few) * calls)

    if bench.wants("L6"):
        with bench.attempt(("L6", "tcp")):
            trips, sent, received = each("item", 10, 110)
            found = items(bench, pool)
            add("L6", "tcp", trips, detail={"N": middle(found["local"], "seconds"), "T": middle(found["remote"], "seconds"),
                                            "T p99": middle(found["remote"], "seconds_p99"), "sent bytes": sent, "received bytes": received})
    if bench.wants("L7"):
        for case, (name, calls) in IDLE_CALLS.items():
            with bench.attempt(("L7", "tcp", case)):
                trips, sent, _ = each(name, 10, 110, calls)
                add("L7", "tcp", trips, case, detail={"sent bytes": sent})
    if bench.wants("L8"):
        with bench.attempt(("L8", "tcp")):
            few, many = 1000, 1000 + bench.sizes.launches
            trips, sent, received = each("launches", few, many)
            add("L8", "tcp", sent - ARGUMENT_BYTES, detail={"argument bytes": ARGUMENT_BYTES, "received bytes": received, "round trips": trips})


def items(bench, pool):
    """Copies of four bytes to the host."""
    def parts(stack):
        return {name: lambda one=one: one.ask("item", count=bench.sizes.calls) for name, one in started(bench, stack, {"local": None, "remote": pool}).items()}

    return in_sets(bench, parts)


def idle(bench):
    """A session in which nothing happens, and beside it what a program that uses the local driver does then."""
    machine = bench.machine
    pool = machine.broker("idle")
    with machine.asked(program(bench), pool) as client, machine.asked(program(bench)) as local:
        for one in (client, local):
            one.ask("launches", count=10)
        time.sleep(min(3, bench.sizes.idle_seconds))  # for two seconds after work the broker looks at what the driver took
        pids = {"client": [client.process.pid], "server": machine.server_pids("idle"), "local": [local.process.pid]}

        def so_far():
            return {name: (sum(map(cpu_of, of)), sum(map(wakeups_of, of), collections.Counter())) for name, of in pids.items()}

        before, begin = so_far(), time.monotonic()
        time.sleep(bench.sizes.idle_seconds)
        after, seconds = so_far(), time.monotonic() - begin
        cpu = {name: (after[name][0] - before[name][0]) / seconds for name in pids}
        wakeups = {name: {thread: times / seconds for thread, times in (after[name][1] - before[name][1]).most_common()} for name in pids}
        bench.results.add("L10", "tcp", 100 * (cpu["client"] + cpu["server"]), detail={
            **{f"{name} CPU a second": value for name, value in cpu.items()}, **{f"{name} wake-ups/s": f"{sum(each.values()):.2g}" for name, each in wakeups.items()},
            **{f"{name} threads' wake-ups/s": " ".join(f"{thread} {times:.2g}" for thread, times in each.items()) for name, each in wakeups.items()}, "over": seconds})
