"""The data path: B1 to B12."""

import itertools
import os
import statistics

from machine import STREAMS_MOST, lanes_of
from rounds import field, in_sets, middle, ratios, spread

STREAMS = (1, 4, 8)
DIRECTIONS = {"htod": "HtoD", "dtoh": "DtoH"}
ROWS = {"htod": ("B1", "B4"), "dtoh": ("B2", "B5")}  # against plain sockets, against the local driver
SLOW, SLOW_RATE = "125 MB/s", 125  # a network of 1 Gbit/s
# Rows of asynchronous copies: the program's memory, in how many pieces of 256 KiB or as a whole, beside what the rate
# is.
ASYNC = {"B8": ("pinned", 1, "sockets"), "B9": ("pageable", 1, "local"), "B10": ("pinned", 64, "sockets")}
PIECE_BYTES = 256 << 10
SESSIONS = 8  # that copy at once
LANES = {"htod": 4, "dtoh": 8}  # of the rows against the local driver


def run(bench):
    for transport in bench.machine.transports(bench.rtts, bench.rate):
        on = transport.name
        for direction, rows in ROWS.items():
            if bench.wants("B3", *rows):
                sockets = [] if on == "shm" else [(rows[0], on, f"k={k}") for k in STREAMS]
                with bench.attempt(*sockets, (rows[1], on), ("B3", on, DIRECTIONS[direction])):
                    copying(bench, transport, direction)
        if bench.wants("B6"):
            with bench.attempt(("B6", on)):
                overlapping(bench, transport)
    if bench.wants(*ASYNC):
        ways = [t for t in bench.machine.transports([]) if t.way != "shm"]
        for row, direction, way in itertools.product(ASYNC, DIRECTIONS, ways):
            if bench.wants(row):
                with bench.attempt((row, way.name, DIRECTIONS[direction])):
                    copying_async(bench, way, row, direction)
    if bench.wants("B11", "B12") and "tcp" in bench.machine.kinds:
        loopback = bench.machine.transports([])[0]
        if bench.wants("B11"):
            with bench.attempt(("B11", "tcp")):
                both_ways(bench, loopback)
        if bench.wants("B12"):
            with bench.attempt(("B12", "tcp", "sum"), ("B12", "tcp", "largest / smallest")):
                several(bench, loopback)
    if bench.wants("B7") and "tcp" in bench.machine.kinds:
        compressing(bench)


def started(bench, stack, pool=None, **settings):
    """The program at a pool or at the local driver, with these settings of fargpu's."""
    extra = {f"FARGPU_{name.upper()}": str(value) for name, value in settings.items()}
    return stack.enter_context(bench.machine.asked([os.path.join(bench.machine.bench, "data")], pool, extra))


def compressing(bench):
    """Copies there and back, compressed as the sender sees fit and not at all, in turn: as fast as TCP goes here, and
    through a slow line. What two programs differ by that do the same is measured beside it."""
    machine = bench.machine
    pool = machine.broker()
    for case, where, contents in (("", pool, "random"), (SLOW, machine.proxy(pool, 0.001, SLOW_RATE), "random"),
                                  (f"{SLOW}, weights in bf16", machine.proxy(pool, 0.001, SLOW_RATE), "bf16")):
        size = bench.sizes.bytes if where == pool else bench.sizes.proxied_bytes
        values = {"bytes": size, "count": bench.sizes.copies, "memory": "pageable", "contents": contents}

        def both_ways(client):
            there, back = (client.ask("copy", direction=direction, **values) for direction in DIRECTIONS)
            return {"copy": there["copy"] + back["copy"], "there": there["copy"], "back": back["copy"],
                    "cpu": there["copy_cpu"] + back["copy_cpu"]}

        def parts(stack):
            modes = {"auto": "auto", "off": "off", **({"off again": "off"} if where == pool else {})}
            clients = {name: started(bench, stack, where, lanes=4, compress=mode) for name, mode in modes.items()}
            for client in clients.values():
                both_ways(client)  # warms up, and measures the line
            return {name: lambda client=client: both_ways(client) for name, client in clients.items()}

        with bench.attempt(("B7", "tcp", case)):
            found = in_sets(bench, parts)
            rates = {f"{mode} {way} GB/s": size / 1e9 / middle(found[mode], name)
                     for mode in ("auto", "off") for way, name in (("HtoD", "there"), ("DtoH", "back"))}
            detail = {**rates, **{f"{mode} client CPU s/GB": middle(found[mode], "cpu") / (2 * size / 1e9)
                                  for mode in ("auto", "off")}}
            if "off again" in found:
                detail["two that do not compress"] = spread(ratios(found["off"], found["off again"], "copy"))
            bench.results.add("B7", "tcp", case=case, rounds=ratios(found["off"], found["auto"], "copy"), detail=detail)


def copying(bench, transport, direction):
    """Copies of both kinds of memory, locally, remotely with k lanes, and what k plain sockets carry, in turn."""
    machine, add, on = bench.machine, bench.results.add, transport.name
    # Less through a proxy, which is slower and has no goals: but 64 MiB, from which on sizes are comparable.
    size, copies = (bench.sizes.bytes, bench.sizes.copies) if transport.rtt == 0 else (bench.sizes.proxied_bytes, 2)
    values = {"bytes": size, "count": copies, "direction": direction}
    server = {}

    def remotely(name, remote, memory):
        before = machine.server_cpu(transport.broker)
        answer = remote.ask("copy", memory=memory, **values)
        # The answer is checked by copying everything to the device before and back afterwards.
        server.setdefault(name, []).append((machine.server_cpu(transport.broker) - before) / (copies + 2))
        return answer

    def parts(stack):
        local = started(bench, stack)
        remotes = {k: started(bench, stack, transport.pool, lanes=k)
                   for k in (STREAMS if on != "shm" else (LANES[direction],))}
        plain = stack.enter_context(machine.plain(transport)) if on != "shm" else None
        turns = {f"local {memory}": lambda memory=memory: local.ask("copy", memory=memory, **values)
                 for memory in ("pageable", "pinned")}
        for k, remote in remotes.items():
            turns[f"T{k}"] = lambda k=k, remote=remote: remotely(f"T{k}", remote, "pageable")
            if plain:
                turns[f"S{k}"] = lambda k=k: plain.ask("stream", streams=k, memory="whole", **values)
                turns[f"C{k}"] = lambda k=k: plain.ask("stream", streams=k, **values)
        turns["T pinned"] = lambda: remotely("T pinned", remotes[LANES[direction]], "pinned")
        for turn in turns.values():
            turn()  # warms up
        return turns

    found = in_sets(bench, parts)

    def rate(name):
        return size / 1e9 / middle(found[name], "copy")

    def cost(name, against="local pageable"):
        gigabytes = size / 1e9
        return {"client CPU s/GB": middle(found[name], "copy_cpu") / gigabytes,
                "server CPU s/GB": statistics.median(server[name]) / gigabytes,
                "local CPU s/GB": middle(found[against], "copy_cpu") / gigabytes}

    against_sockets, against_local = ROWS[direction]
    if bench.wants(against_sockets) and on != "shm":
        for k in STREAMS:
            add(against_sockets, on, case=f"k={k}", rounds=ratios(found[f"S{k}"], found[f"T{k}"], "copy"), detail={
                f"S{k} GB/s": rate(f"S{k}"), "T GB/s": rate(f"T{k}"), f"S{k} out of a cache GB/s": rate(f"C{k}"),
                "T / that": spread(ratios(found[f"C{k}"], found[f"T{k}"], "copy")), **cost(f"T{k}"),
                **{f"{of} CPU s/GB": middle(found[f"{name}{k}"], "copy_cpu") / (size / 1e9)
                   for name, of in (("S", "sockets' client"), ("C", "out of a cache their"))}})
    if bench.wants(against_local):
        name = f"T{LANES[direction]}"
        add(against_local, on, rounds=ratios(found["local pageable"], found[name], "copy"), detail={
            "lanes": LANES[direction], "N GB/s": rate("local pageable"), "T GB/s": rate(name), **cost(name),
            "p99 T": middle(found[name], "copy_p99")})
    if bench.wants("B3"):
        add("B3", on, case=DIRECTIONS[direction], rounds=ratios(found["local pinned"], found["T pinned"], "copy"),
            detail={
            "lanes": LANES[direction], "N GB/s": rate("local pinned"), "T GB/s": rate("T pinned"),
            **cost("T pinned", "local pinned")})


def rate_of(answers, size):
    return size / 1e9 / middle(answers, "copy")


def costs(found, server, size):
    """CPU seconds for a GB, by what found and server have of the program; of the local driver and of sockets too."""
    gigabytes = size / 1e9
    return {"client CPU s/GB": middle(found["T"], "copy_cpu") / gigabytes,
            "server CPU s/GB": statistics.median(server) / gigabytes,
            **{f"{of} CPU s/GB": middle(found[name], "copy_cpu") / gigabytes
               for name, of in (("N", "local"), ("S", "sockets' client")) if name in found}}


def copying_async(bench, transport, row, direction):
    """Asynchronous copies and a wait for their stream, locally, remotely, and what plain sockets carry, in turn."""
    machine, sizes = bench.machine, bench.sizes
    memory, pieces, against = ASYNC[row]
    size = sizes.bytes if pieces == 1 else min(sizes.bytes, pieces * PIECE_BYTES)
    copies = sizes.copies if pieces == 1 else sizes.rows_of_copies
    values = {"bytes": size, "count": copies, "direction": direction}
    server, lanes = [], []

    def parts(stack):
        local, remote = started(bench, stack), started(bench, stack, transport.pool)
        plain = stack.enter_context(machine.plain(transport))

        def locally():
            return local.ask("copy_async", memory=memory, pieces=pieces, **values)

        def remotely():
            before = machine.server_cpu(transport.broker)
            answer = remote.ask("copy_async", memory=memory, pieces=pieces, **values)
            # all bytes go once more for the comparison
            server.append((machine.server_cpu(transport.broker) - before) / (copies + 1))
            return answer

        locally(), remotely()  # warms up
        lanes.append(lanes_of(remote.process.pid, transport.pool))
        streams = {"S": lanes[-1][0], **({"S most": STREAMS_MOST} if lanes[-1][0] < STREAMS_MOST else {})}
        return {"N": locally, "T": remotely,
                **{name: lambda k=k: plain.ask("stream", streams=k, memory="whole", **values)
                   for name, k in streams.items()}}

    found = in_sets(bench, parts)
    detail = {"N GB/s": rate_of(found["N"], size), "T GB/s": rate_of(found["T"], size),
              "S GB/s": rate_of(found["S"], size), "k": lanes[-1][0],
              **costs(found, server, size), "T / N": spread(ratios(found["N"], found["T"], "copy")),
              "T / S": spread(ratios(found["S"], found["T"], "copy")),
              "connections": lanes[-1][1], "p99 T": middle(found["T"], "copy_p99")}
    if "S most" in found:
        detail |= {f"S{STREAMS_MOST} GB/s": rate_of(found["S most"], size),
                   f"T / S{STREAMS_MOST}": spread(ratios(found["S most"], found["T"], "copy"))}
    bench.results.add(row, transport.name, case=DIRECTIONS[direction],
                      rounds=ratios(found["N" if against == "local" else "S"], found["T"], "copy"), detail=detail)


def both_ways(bench, transport):
    """A copy to the device and one from it at once while a kernel runs, beside plain sockets that carry as much both
    ways at once."""
    machine, size, copies = bench.machine, bench.sizes.bytes, bench.sizes.copies
    server, lanes = [], []

    def parts(stack):
        local, remote = started(bench, stack), started(bench, stack, transport.pool)
        plain = stack.enter_context(machine.plain(transport))

        def remotely():
            before = machine.server_cpu()
            answer = remote.ask("both_ways", bytes=size, count=copies)
            server.append((machine.server_cpu() - before) / (copies + 1))
            return answer

        def locally():
            return local.ask("both_ways", bytes=size, count=copies)

        locally(), remotely()  # warms up, and learns how long the kernel is to run
        lanes.append(lanes_of(remote.process.pid, transport.pool))
        return {"N": locally, "T": remotely,
                "S": lambda: plain.ask("stream", streams=lanes[-1][0], bytes=size, count=copies, direction="both",
                                       memory="whole")}

    found = in_sets(bench, parts)
    bench.results.add("B11", "tcp", rounds=ratios(found["S"], found["T"], "copy"), detail={
        **{f"{name} GB/s": rate_of(found[name], 2 * size) for name in ("N", "T", "S")}, "k": lanes[-1][0],
        **costs(found, server, 2 * size),
        "connections": lanes[-1][1], "copies that the kernel outlasted": f"{middle(found['T'], 'covered'):.0%}"})


def several(bench, transport):
    """Sessions that copy at the same time, beside as many processes with plain sockets: to the device, then from it.
    The figure of a round is that of the way that is worse."""
    machine, sizes = bench.machine, bench.sizes
    values = {"bytes": sizes.session_bytes, "count": 1, "milliseconds": int(1000 * sizes.several_seconds)}
    server, lanes = {direction: [] for direction in DIRECTIONS}, []

    def at_once(programs, case, **more):
        for one in programs:
            one.tell(case, **values, **more)
        return [one.answer() for one in programs]

    def rates(answers):
        return [sizes.session_bytes / answer["seconds"] for answer in answers]

    def parts(stack):
        sessions = [started(bench, stack, transport.pool) for _ in range(SESSIONS)]
        plain = [stack.enter_context(machine.plain(transport)) for _ in range(SESSIONS)]

        def remotely(direction):
            before = machine.server_cpu()
            answers = at_once(sessions, "copy_async", memory="pinned", checks="off", direction=direction)
            gigabytes = sizes.session_bytes / 1e9 * sum(field(answers, "made"))
            server[direction].append((machine.server_cpu() - before) / gigabytes)
            return {"rates": rates(answers), "cpu": sum(a["copy_cpu"] * a["made"] for a in answers) / gigabytes}

        for direction in DIRECTIONS:
            # warms up, and compares what was copied
            at_once(sessions, "copy_async", memory="pinned", direction=direction)
        lanes.append(lanes_of(sessions[0].process.pid, transport.pool))
        return {**{f"T {direction}": lambda direction=direction: remotely(direction) for direction in DIRECTIONS},
                **{f"S {direction}": lambda direction=direction: {
                    "rates": rates(at_once(plain, "stream", streams=lanes[-1][0], memory="whole", direction=direction))}
                   for direction in DIRECTIONS}}

    found = in_sets(bench, parts)
    sums = {name: [sum(answer["rates"]) for answer in answers] for name, answers in found.items()}
    uneven = {name: [max(answer["rates"]) / min(answer["rates"]) for answer in answers]
              for name, answers in found.items()}
    detail = {"k": lanes[-1][0], "connections": lanes[-1][1], "MiB a copy": sizes.session_bytes >> 20}
    for direction, way in DIRECTIONS.items():
        detail |= {f"{way} T GB/s": statistics.median(sums[f"T {direction}"]) / 1e9,
                   f"{way} S GB/s": statistics.median(sums[f"S {direction}"]) / 1e9,
                   f"{way} T / S": spread([t / s for t, s in zip(sums[f"T {direction}"], sums[f"S {direction}"])]),
                   f"{way} client CPU s/GB": middle(found[f"T {direction}"], "cpu"),
                   f"{way} server CPU s/GB": statistics.median(server[direction])}
    bench.results.add("B12", "tcp", case="sum", detail=detail, rounds=[
        min(up / su, down / sd)
        for up, su, down, sd in zip(*(sums[name] for name in ("T htod", "S htod", "T dtoh", "S dtoh")))])
    bench.results.add("B12", "tcp", case="largest / smallest",
                      rounds=[max(pair) for pair in zip(uneven["T htod"], uneven["T dtoh"])], detail={
        **{f"{way} T": spread(uneven[f"T {direction}"]) for direction, way in DIRECTIONS.items()},
        **{f"{way} S": spread(uneven[f"S {direction}"]) for direction, way in DIRECTIONS.items()}})


def overlapping(bench, transport):
    """A copy and a kernel that takes as long, at once."""
    size = bench.sizes.bytes if transport.rtt == 0 else bench.sizes.proxied_bytes

    def parts(stack):
        both = {"local": started(bench, stack), "remote": started(bench, stack, transport.pool, lanes=LANES["htod"])}
        return {name: lambda one=one: one.ask("overlap", bytes=size, count=bench.sizes.overlaps)
                for name, one in both.items()}

    found = in_sets(bench, parts)
    overlaps = {name: [both / max(copy, compute)
                       for both, copy, compute in zip(*(field(answers, part) for part in ("both", "copy", "compute")))]
                for name, answers in found.items()}
    bench.results.add("B6", transport.name, rounds=overlaps["remote"], detail={
        "locally": f"{statistics.median(overlaps['local']):.3g}", "copy": middle(found["remote"], "copy"),
        "compute": middle(found["remote"], "compute"), "both": middle(found["remote"], "both")})
