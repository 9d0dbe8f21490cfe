"""A tenant's faults: F1 (what others notice), F2 (when its place can be used again)."""

import time

from machine import Failed

KERNEL_SECONDS_MAX = 1  # for which a kernel may run


def run(bench, tenants):
    if bench.wants("F1"):
        neighbours(bench, tenants)
    if bench.wants("F2"):
        places(bench, tenants)


def fail(tenant, fault):
    """Makes it happen. Returns when the program has ended, or has been told."""
    if fault == "kill -9":
        tenant.kill()
        return
    tenant.tell()
    try:
        tenant.line(60)
    except Failed:
        pass  # it ended at once


FAULTS = {"illegal address": "illegal", "kill -9": "sit", "hang": "hang"}


def arguments_of(fault):
    return [FAULTS[fault], 1] if FAULTS[fault] == "sit" else [FAULTS[fault]]


def neighbours(bench, tenants):
    """Four tenants make requests of a kernel of a millisecond; beside them one that does nothing, or has a fault in the
    middle."""
    seconds = bench.sizes.share_seconds
    wishes = [(["spend", seconds, 1000, 1, 5], None)] * 4
    pool = tenants.pool("fair", "faults", "--kernel-seconds-max", str(KERNEL_SECONDS_MAX))
    cases = [(("F1", "tcp", f"{fault}, disturbed"), ("F1", "tcp", f"{fault}, p99 later by")) for fault in FAULTS]
    with bench.attempt(*(place for pair in cases for place in pair)):
        with tenants.started(pool, "tenant", [(["sit", 1], None)]):
            calm = tenants.run(pool, wishes)
        for fault, (disturbed, later) in zip(FAULTS, cases):
            with tenants.started(pool, "tenant", [(arguments_of(fault), None)]) as (faulty,):
                def happen():
                    time.sleep(seconds / 4)
                    fail(faulty, fault)
                got = run_counting(tenants, pool, wishes, happen)
            well = [one for one in got if one is not None]
            bench.results.add("F1", "tcp", len(got) - len(well), disturbed[2])
            if well:
                p99, before = max(one["p99_ms"] for one in well), max(one["p99_ms"] for one in calm)
                bench.results.add("F1", "tcp", max(0.0, p99 - before), later[2],
                                  detail={"p99 before": before / 1e3, "p99": p99 / 1e3,
                                          "longest": max(one["max_ms"] for one in well) / 1e3})


def run_counting(tenants, pool, wishes, happen):
    """As Tenants.run, with nothing for a program that fails."""
    with tenants.started(pool, "turns", [(["together", *arguments], env) for arguments, env in wishes]) as running:
        for tenant in running:
            tenant.tell()
        happen()
        found = []
        for tenant in running:
            try:
                found.append(tenant.found(tenants.seconds * 20 + 60))
            except (Failed, ValueError):
                found.append(None)
        return found


def places(bench, tenants):
    """A host with one place: when, after a program has heard of its fault, the next one, which waits, has run a
    kernel."""
    pool = tenants.pool("fair", "one place", "--sessions-max", "1", "--kernel-seconds-max", str(KERNEL_SECONDS_MAX))
    with bench.attempt(*(("F2", "tcp", fault) for fault in FAULTS)):
        for fault in FAULTS:
            rounds = []
            for _ in range(bench.rounds):
                faulty = tenants.start(pool, "tenant", arguments_of(fault)).ready()
                try:
                    following = tenants.start(pool, "tenant", ["sit", 1], {"FARGPU_WAIT": "60s"})
                    try:
                        time.sleep(0.5)  # it waits
                        fail(faulty, fault)
                        begin = time.monotonic()
                        following.ready()
                        rounds.append(time.monotonic() - begin)
                    finally:
                        following.end()
                finally:
                    faulty.end()
            bench.results.add("F2", "tcp", rounds=rounds, case=fault)
