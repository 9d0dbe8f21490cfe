"""Sharing a device's memory: S3 (how many sessions at once), S5 (what a session costs of it), Q1 (what a session can
have beyond its limit)."""

import contextlib
import os
import time

from machine import Failed
from tenants import device_mib


def run(bench, tenants):
    if bench.wants("S3"):
        density(bench, tenants)
    if bench.wants("S5"):
        overhead(bench, tenants)
    if bench.wants("Q1"):
        overshoot(bench, tenants)


def pool_of_many(tenants, *options, name="many"):
    return tenants.machine.broker(name, "--warm-workers", "0", "--sessions-max", "512", *options)


def dense_pool(tenants):
    """Where sessions that do nothing make room for others. The programs need the rest of the host's memory."""
    for_evicted = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 8
    return pool_of_many(tenants, "--evicted-bytes-max", str(for_evicted), name="dense")


def density(bench, tenants):
    """Sessions with memory of their own, whose kernels have written to it, until there is no room for more; then all at
    once look whether their memory is as they left it."""
    sizes, at_once = bench.sizes, 16
    with bench.attempt(("S3", "tcp")):
        pool, running, why = dense_pool(tenants), [], f"no more than {sizes.sessions_most} are tried"
        begin = time.monotonic()
        try:
            while len(running) < sizes.sessions_most and why.startswith("no more"):
                batch = [tenants.start(pool, "tenant", ["sit", sizes.session_mib])
                         for _ in range(min(at_once, sizes.sessions_most - len(running)))]
                for tenant in batch:
                    try:
                        running.append(tenant.ready())
                    except Failed as error:
                        why = f"then: {' '.join(str(error).split())[-160:]}"
                        tenant.end()
            seconds = time.monotonic() - begin
            evicted = [one for one in tenants.told_sessions(pool) if one["state"] == "evicted"]
            for tenant in running:
                tenant.tell()
            right = sum(tenant.found(300)["wrong"] == 0 for tenant in running)
            if right != len(running):
                raise Failed(f"of {len(running)} sessions {len(running) - right} found their memory changed")
            detail = {"MiB each": sizes.session_mib, "until all ran": seconds, "end": why,
                      "evicted at once": len(evicted), **host_memory(evicted)}
            bench.results.add("S3", "tcp", right, detail=detail)
        finally:
            for tenant in running:
                with contextlib.suppress(OSError):
                    tenant.process.stdin.close()
            for tenant in running:
                tenant.end()


def host_memory(evicted):
    """What their workers have of the host's memory for themselves, on average."""
    if not evicted:
        return {}
    each, contents = (sum(one[what] for one in evicted) / len(evicted) / 2**20
                      for what in ("host_bytes", "away_host_bytes"))
    return {"of the host for each, MiB": f"{each:.0f}", "without its contents, MiB": f"{each - contents:.0f}"}


def settled_mib():
    """What is in use when it has stopped changing: the driver gives memory of processes back a while after they have
    ended."""
    before = device_mib()
    for _ in range(40):
        time.sleep(0.25)
        now = device_mib()
        if now == before:
            return now
        before = now
    return before


def cost_mib(tenants, pool, arguments, count=1):
    before = settled_mib()
    with tenants.started(pool, "tenant", [(arguments, None)] * count):
        return (settled_mib() - before) / count


def overhead(bench, tenants):
    with bench.attempt(("S5", "tcp")):
        local, remote = (cost_mib(tenants, pool, ["sit", 2], 4) for pool in (tenants.LOCAL, pool_of_many(tenants)))
        bench.results.add("S5", "tcp", remote / local,
                          detail={"local, MiB": f"{local:.1f}", "a session, MiB": f"{remote:.1f}"})


def overshoot(bench, tenants):
    quota = bench.sizes.quota_mib << 20
    cases = ("explicit", "cuMemGetInfo, off by", "the driver's own")
    with bench.attempt(*(("Q1", "tcp", case) for case in cases)):
        pool = pool_of_many(tenants)
        with tenants.started(pool, "tenant",
                             [(["fill", bench.sizes.quota_mib], {"FARGPU_MEM": str(quota)})]) as (tenant,):
            found = tenant.found(60)
            bench.results.add("Q1", "tcp", max(0, found["got"] - quota), "explicit",
                              detail={"quota, MiB": quota >> 20, "left of it, bytes": quota - found["got"]})
            bench.results.add("Q1", "tcp", abs(quota - found["got"] - found["free"]) / 2**20, "cuMemGetInfo, off by",
                              detail={"free, bytes": found["free"], "total, bytes": found["total"]})
        before = settled_mib()  # fails where nothing tells
        with tenants.started(pool, "tenant",
                             [(["fill", bench.sizes.quota_mib], {"FARGPU_MEM": str(quota)})]) as (tenant,):
            found, used = tenant.found(60), settled_mib() - before
        context = cost_mib(tenants, pool, ["sit", 2])
        bench.results.add("Q1", "tcp", max(0.0, used - found["got"] / 2**20 - context), "the driver's own",
                          detail={"in use, MiB": used, "a session that does nothing, MiB": f"{context:.0f}"})
