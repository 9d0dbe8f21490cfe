"""Sharing a device. Q2 to Q5, P1 to P3: by turns; work is counted in kernels that take a given time, against what one
tenant gets done alone. What is no matter of time is in sharing_memory.py (S3, S5, Q1) and sharing_faults.py (F1,
F2)."""

import sharing_faults
import sharing_memory
from tenants import WITHOUT, Tenants, jain


def run(bench):
    tenants = Tenants(bench)
    if bench.wants("Q2"):
        quotas(bench, tenants)
    if bench.wants("Q3"):
        limiter(bench, tenants)
    if bench.wants("Q4", "Q5"):
        equals(bench, tenants)
    if bench.wants("Q4"):
        weights(bench, tenants)
        loads(bench, tenants)
    if bench.wants("P1", "P2", "P3"):
        priorities(bench, tenants)
    sharing_memory.run(bench, tenants)
    sharing_faults.run(bench, tenants)


def quotas(bench, tenants):
    """A whole second's part is what was done in ten tenths, of what one without a limit does."""
    seconds = bench.sizes.share_seconds
    for us in (1000, 20000):
        solo = None
        for percent in (10, 25, 50, 75):
            case = f"{percent}%, {us // 1000} ms"
            with bench.attempt(("Q2", "tcp", case), ("Q2", "tcp", case + ", a second")):
                pool = tenants.pool("fixed")
                solo = solo or tenants.alone(pool, "spend", seconds, us)["share"]
                got = tenants.run(pool, [(["spend", seconds, us], {"FARGPU_COMPUTE": f"{percent}%"})])[0]
                bench.results.add("Q2", "tcp", abs(100 * got["share"] / solo - percent), case, detail={
                    "got": f"{100 * got['share'] / solo:.2f}%", "series": got["series"]})
                width = min(10, len(got["series"]))
                windows = [100 * sum(got["series"][i:i + width]) / width / solo
                           for i in range(0, len(got["series"]) - width + 1, width)]
                worst = max(windows, key=lambda window: abs(window - percent))
                bench.results.add("Q2", "tcp", abs(worst - percent), case + ", a second",
                                  detail={"worst": f"{worst:.2f}%"})


def limiter(bench, tenants):
    with bench.attempt(("Q3", "tcp")):
        rounds, rates = [], {}
        for _ in range(bench.rounds):
            rates = {policy: tenants.alone(tenants.pool(policy), "spend", bench.sizes.share_seconds / 2, 1)["kernels"]
                     for policy in ("free", "fair")}
            rounds.append(100 * (1 - rates["fair"] / rates["free"]))
        bench.results.add("Q3", "tcp", rounds=rounds,
                          detail={"kernels under free": rates["free"], "under fair": rates["fair"]})


def equals(bench, tenants):
    def measure(on, pool):
        load = ["spend", bench.sizes.share_seconds, 1000]
        solo = tenants.alone(pool, *load)
        got = tenants.run(pool, [(load, None)] * 8)
        work = [one["kernels"] for one in got]
        bench.results.add("Q4", on, jain(work), "8 equal, Jain",
                          detail={f"tenant {i} series": one["series"] for i, one in enumerate(got)})
        bench.results.add("Q5", on, sum(work) / solo["kernels"],
                          detail={"alone": solo["kernels"], "all eight": sum(work)})

    with bench.attempt(("Q4", "tcp", "8 equal, Jain"), ("Q5", "tcp")):
        measure("tcp", tenants.pool("fair"))
    for where in WITHOUT:
        with bench.attempt(("Q4", where, "8 equal, Jain"), ("Q5", where)):
            with tenants.beside(where) as pool:
                measure(where, pool)


def weights(bench, tenants):
    with bench.attempt(("Q4", "tcp", "3:1, % off")):
        pool = tenants.pool("fair")
        before = set(tenants.sessions(pool))

        def weigh():
            first = min(set(tenants.sessions(pool)) - before)
            tenants.change(pool, first, weight=300)

        got = tenants.run(pool, [(["spend", bench.sizes.share_seconds, 1000], None)] * 2, weigh)
        most, least = max(one["kernels"] for one in got), min(one["kernels"] for one in got)
        bench.results.add("Q4", "tcp", 100 * abs(most / least - 3) / 3, "3:1, % off",
                          detail={"more": most, "less": least,
                                  "series of more": max(got, key=lambda o: o["kernels"])["series"]})


def loads(bench, tenants):
    """Four tenants of unequal habits at once, under each policy and without fargpu; each one's work is a part of what
    it gets done alone. A full load takes all multiprocessors that it may have, the others one."""
    seconds, blocks, rounds = bench.sizes.share_seconds, bench.sizes.fill_blocks, bench.sizes.fill_rounds
    four = {"short kernels": ["spend", seconds, 100], "20 ms kernels": ["spend", seconds, 20000],
            "graphs": ["graphs", seconds, 2000],
            "copies": ["copies", seconds, bench.sizes.device_copy_mib]}
    full = {f"{kind} full kernels{more}": ["fill", seconds, blocks, rounds * times]
            for kind, times in (("short", 1), ("long", 100)) for more in ("", ", again")}
    solo = {}

    def measure(on, case, pool, env=None, kinds=four):
        where = ("tcp" if on == "tcp" else "local", kinds is full)
        if where not in solo:
            everything = {"FARGPU_COMPUTE": "100%"} if env else None
            solo[where] = [tenants.run(pool, [(arguments, everything)])[0]["share"] for arguments in kinds.values()]
        alone = solo[where]
        got = tenants.run(pool, [(arguments, env) for arguments in kinds.values()])
        parts = [one["share"] / whole for one, whole in zip(got, alone)]
        detail = {name: f"{100 * part:.1f}%"
                  for name, part in zip(kinds, parts)} | {"together": f"{100 * sum(parts):.1f}%"}
        detail |= {f"{name} series": [value / whole for value in one["series"]]
                   for name, one, whole in zip(kinds, got, alone)}
        bench.results.add("Q4", on, jain(parts), case, detail=detail)

    for policy in ("fair", "fixed", "exclusive"):
        case = f"four loads, {policy}, Jain"
        with bench.attempt(("Q4", "tcp", case)):
            measure("tcp", case, tenants.pool(policy), {"FARGPU_COMPUTE": "25%"} if policy == "fixed" else None)
    for where in WITHOUT:
        with bench.attempt(("Q4", where, "four loads, Jain")):
            with tenants.beside(where) as pool:
                measure(where, "four loads, Jain", pool)
    for how, partitions in (("a tenant's MPS", False), ("a tenant's SM partitions", True)):
        cases = {f"four loads, {how}, Jain": four, f"four full loads, {how}, Jain": full}
        with bench.attempt(*(("Q4", "tcp", case) for case in cases)):
            with tenants.under_mps():
                pool = tenants.pool_under_mps(partitions)
                for case, kinds in cases.items():
                    measure("tcp", case, pool, {"FARGPU_COMPUTE": "25%"} if partitions else None, kinds)


def priorities(bench, tenants):
    add, seconds = bench.results.add, bench.sizes.share_seconds
    critical, background = {"FARGPU_PRIORITY": "latency-critical"}, {"FARGPU_PRIORITY": "best-effort"}

    def requests(on, pool):
        request = ["spend", seconds, 1000, 10, 10]  # ten kernels of a millisecond, then a pause of ten
        alone = tenants.run(pool, [(request, critical if pool else None)])[0]
        solo = tenants.alone(pool, "spend", seconds, 500)
        got, harvest = tenants.run(pool, [(request, critical if pool else None),
                                          (["spend", seconds, 500], background if pool else None)])
        add("P1", on, got["p99_ms"] / alone["p99_ms"],
            detail={"alone p99": alone["p99_ms"] / 1e3, "p99": got["p99_ms"] / 1e3, "p50": got["p50_ms"] / 1e3})
        idle = max(1e-9, solo["share"] * (1 - got["share"]))
        add("P2", on, harvest["share"] / idle, detail={"best effort": f"{100 * harvest['share']:.1f}%",
                                                       "critical": f"{100 * got['share']:.1f}%",
                                                       "series": harvest["series"]})

    def starts(on, pool):
        request, longest = ["spend", seconds, 100, 1, 7], 2000
        alone = tenants.run(pool, [(request, critical if pool else None)])[0]
        # such a kernel, which is somewhat more than it was told
        takes = longest / tenants.alone(pool, "spend", seconds / 2, longest)["share"]
        got, _ = tenants.run(pool, [(request, critical if pool else None),
                                    (["spend", seconds, longest], background if pool else None)])
        add("P3", on, 1000 * (got["p99_ms"] - alone["p50_ms"]) - takes,
            detail={"longest kernel": takes / 1e6, "alone p50": alone["p50_ms"] / 1e3,
                    "alone p99": alone["p99_ms"] / 1e3, "p50": got["p50_ms"] / 1e3, "p99": got["p99_ms"] / 1e3})

    for rows, measure in ((("P1", "P2"), requests), (("P3",), starts)):
        if not bench.wants(*rows):
            continue
        with bench.attempt(*((row, "tcp") for row in rows)):
            measure("tcp", tenants.pool("fair"))
        for where in WITHOUT:
            with bench.attempt(*((row, where) for row in rows)):
                with tenants.beside(where) as pool:
                    measure(where, pool)
