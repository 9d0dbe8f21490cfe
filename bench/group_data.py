"""The data path: B1 to B7."""

import os
import statistics

from rounds import field, in_sets, middle, ratios, spread

STREAMS = (1, 4, 8)
DIRECTIONS = {"htod": "HtoD", "dtoh": "DtoH"}
ROWS = {"htod": ("B1", "B4"), "dtoh": ("B2", "B5")}  # against plain sockets, against the local driver
SLOW, SLOW_RATE = "125 MB/s", 125  # a network of 1 Gbit/s
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
    if bench.wants("B7") and "tcp" in bench.machine.kinds:
        compressing(bench)


def started(bench, stack, pool=None, **settings):
    """The program at a pool or at the local driver, with these settings of fargpu's."""
    extra = {f"FARGPU_{name.upper()}": str(value) for name, value in settings.items()}
    return stack.enter_context(bench.machine.asked([os.path.join(bench.machine.bench, "data")], pool, extra))


def compressing(bench):
    """Copies there and back, compressed as the sender sees fit and not at all, in turn: as fast as TCP goes here, and through a slow line. What
    two programs differ by that do the same is measured beside it."""
    machine = bench.machine
    pool = machine.broker()
    for case, where, contents in (("", pool, "random"), (SLOW, machine.proxy(pool, 0.001, SLOW_RATE), "random"),
                                  (f"{SLOW}, weights in bf16", machine.proxy(pool, 0.001, SLOW_RATE), "bf16")):
        size = bench.sizes.bytes if where == pool else bench.sizes.proxied_bytes
        values = {"bytes": size, "count": bench.sizes.copies, "memory": "pageable", "contents": contents}

        def both_ways(client):
            there, back = (client.ask("copy", direction=direction, **values) for direction in DIRECTIONS)
            return {"copy": there["copy"] + back["copy"], "there": there["copy"], "back": back["copy"], "cpu": there["copy_cpu"] + back["copy_cpu"]}

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
            detail = {**rates, **{f"{mode} client CPU s/GB": middle(found[mode], "cpu") / (2 * size / 1e9) for mode in ("auto", "off")}}
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
        before = machine.server_cpu()
        answer = remote.ask("copy", memory=memory, **values)
        # The answer is checked by copying everything to the device before and back afterwards.
        server.setdefault(name, []).append((machine.server_cpu() - before) / (copies + 2))
        return answer

    def parts(stack):
        local = started(bench, stack)
        remotes = {k: started(bench, stack, transport.pool, lanes=k) for k in (STREAMS if on != "shm" else (LANES[direction],))}
        plain = stack.enter_context(machine.plain(transport)) if on != "shm" else None
        turns = {f"local {memory}": lambda memory=memory: local.ask("copy", memory=memory, **values) for memory in ("pageable", "pinned")}
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
        return {"client CPU s/GB": middle(found[name], "copy_cpu") / gigabytes, "server CPU s/GB": statistics.median(server[name]) / gigabytes,
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
            "lanes": LANES[direction], "N GB/s": rate("local pageable"), "T GB/s": rate(name), **cost(name), "p99 T": middle(found[name], "copy_p99")})
    if bench.wants("B3"):
        add("B3", on, case=DIRECTIONS[direction], rounds=ratios(found["local pinned"], found["T pinned"], "copy"), detail={
            "lanes": LANES[direction], "N GB/s": rate("local pinned"), "T GB/s": rate("T pinned"), **cost("T pinned", "local pinned")})


def overlapping(bench, transport):
    """A copy and a kernel that takes as long, at once."""
    size = bench.sizes.bytes if transport.rtt == 0 else bench.sizes.proxied_bytes

    def parts(stack):
        both = {"local": started(bench, stack), "remote": started(bench, stack, transport.pool, lanes=LANES["htod"])}
        return {name: lambda one=one: one.ask("overlap", bytes=size, count=bench.sizes.overlaps) for name, one in both.items()}

    found = in_sets(bench, parts)
    overlaps = {name: [both / max(copy, compute) for both, copy, compute in zip(*(field(answers, part) for part in ("both", "copy", "compute")))]
                for name, answers in found.items()}
    bench.results.add("B6", transport.name, rounds=overlaps["remote"], detail={
        "locally": f"{statistics.median(overlaps['local']):.3g}", "copy": middle(found["remote"], "copy"),
        "compute": middle(found["remote"], "compute"), "both": middle(found["remote"], "both")})
