"""RDMA beside UCX itself, by UCX's TCP and its shared memory, which take the place of a card: R1, R2."""

import os

import perftest
from group_control import PING_BYTES, too_few
from machine import lanes_of
from rounds import field, in_sets, middle, ratios, spread

DIRECTIONS = {"htod": "HtoD", "dtoh": "DtoH"}
PUT_BYTES = (256 << 10, 4 << 20)  # the channel's own, and one that is large for ucx_perftest
CASES = {"TCP": "tcp", "shared memory": "memory"}
SPIN = "100000"  # microseconds: as ucx_perftest does


def run(bench):
    if "ucx" not in bench.machine.kinds:
        return
    if bench.wants("R1"):
        with bench.attempt(("R1", "ucx")):
            copying(bench)
    for case, by in CASES.items():
        if bench.wants("R2"):
            with bench.attempt(("R2", "ucx", case)):
                calling(bench, case, by)


def copying(bench):
    """Asynchronous copies of pinned memory by UCX and by TCP, and puts of ucx_perftest from as many workers as the
    session by UCX has lanes, in turn. The figure of a round is that of the direction that is worse, beside the faster
    puts."""
    machine, size, copies = bench.machine, bench.sizes.bytes, bench.sizes.copies
    ucx = machine.ucx("tcp")
    pools, lanes = {"T": ucx.pool, "TCP": machine.broker()}, []

    def parts(stack):
        clients = {name: stack.enter_context(machine.asked([os.path.join(machine.bench, "data")], pool))
                   for name, pool in pools.items()}

        def copy(name, direction):
            return clients[name].ask("copy_async", memory="pinned", bytes=size, count=copies, direction=direction)

        def put(put_bytes):
            count = max(10, size * copies // put_bytes // lanes[-1])
            found = perftest.measure(machine, "tcp", "ucp_put_bw", put_bytes, count, lanes[-1])
            return {"copy": size / sum(put_bytes / one["mean"] for one in found)}

        turns = {f"{name} {direction}": lambda name=name, direction=direction: copy(name, direction)
                 for name in clients for direction in DIRECTIONS}
        for turn in turns.values():
            turn()  # warms up, and opens the lanes
        lanes.append(lanes_of(clients["T"].process.pid, ucx.pool)[0])
        return turns | {f"put {one}": lambda one=one: put(one) for one in PUT_BYTES}

    found = in_sets(bench, parts)
    puts = [{"copy": min(times)} for times in zip(*(field(found[f"put {one}"], "copy") for one in PUT_BYTES))]
    both = {direction: ratios(puts, found[f"T {direction}"], "copy") for direction in DIRECTIONS}

    def rate(name):
        return size / 1e9 / middle(found[name], "copy")

    detail = {"workers": lanes[-1], "put GB/s": size / 1e9 / middle(puts, "copy"),
              **{f"of {one >> 10} KiB GB/s": rate(f"put {one}") for one in PUT_BYTES}}
    for direction, way in DIRECTIONS.items():
        detail |= {f"{way} T GB/s": rate(f"T {direction}"), f"{way} T / put": spread(both[direction]),
                   f"{way} by TCP GB/s": rate(f"TCP {direction}")}
    bench.results.add("R1", "ucx", rounds=[min(pair) for pair in zip(*both.values())], detail=detail,
                      note=too_few(True))


def calling(bench, case, by):
    """A trivial call, and an active message there and back of ucx_perftest, whose ends spin both, in turn."""
    machine = bench.machine
    ucx = machine.ucx(by, "spinning", ("--spin-us", SPIN))

    def parts(stack):
        client = stack.enter_context(machine.asked([os.path.join(machine.bench, "control")], ucx.pool,
                                                   {"FARGPU_SPIN_US": SPIN}))
        count = max(10, min(bench.sizes.calls, int(0.25 / client.ask("trivial", count=10)["seconds"])))

        def ping():
            [found] = perftest.measure(machine, by, "ucp_am_lat", PING_BYTES, count)
            return {"seconds": 2 * found["median"], "mean": 2 * found["mean"]}

        return {"T": lambda: client.ask("trivial", count=count), "P": ping}

    found = in_sets(bench, parts)
    detail = {"P": middle(found["P"], "seconds"), "P on average": middle(found["P"], "mean"),
              "T": middle(found["T"], "seconds"), "T p99": middle(found["T"], "seconds_p99"),
              "T / P": spread(ratios(found["T"], found["P"], "seconds"))}
    rounds = ratios(found["T"], found["P"], "seconds") if by == "tcp" else \
        [1e6 * (t - p) for t, p in zip(*(field(found[name], "seconds") for name in ("T", "P")))]
    bench.results.add("R2", "ucx", case=case, rounds=rounds, detail=detail, note=too_few(True))
