"""Sharing a device by turns: Q2 to Q5, P1 to P3. Work is counted in kernels that take a given time, against what one tenant gets done alone."""

import contextlib
import json
import os
import subprocess

from machine import Failed


class Tenants:
    """Programs that use a device at the same time (tests/system/programs/turns.cu)."""

    def __init__(self, bench):
        self.machine, self.seconds = bench.machine, bench.sizes.share_seconds

    def pool(self, policy):
        return self.machine.broker(f"policy.{policy}", "--policy", policy, "--warm-workers", "2")

    def run(self, pool, wishes, then=None):
        """What each of [(arguments, environment)] got done in the same seconds. `then` is called when all have begun."""
        started = []
        try:
            for arguments, env in wishes:
                with open(self.machine.log("tenant"), "w") as log:
                    command = self.machine.remotely([os.path.join(self.machine.bench, "turns"), *map(str, arguments)])
                    started.append(subprocess.Popen(command, env=self.machine.environment(pool, env), stdout=subprocess.PIPE, stderr=log, text=True))
            for process in started:
                if process.stdout.readline() != "ready\n":
                    raise Failed("a tenant did not begin")
            if then:
                then()
            found = []
            for process in started:
                text, _ = process.communicate(timeout=self.seconds * 20 + 60)
                if process.returncode != 0:
                    raise Failed(f"a tenant ended with {process.returncode}")
                found.append(json.loads(text.strip().splitlines()[-1]))
            return found
        finally:
            for process in started:
                with contextlib.suppress(OSError):
                    process.kill()
                process.wait()

    def alone(self, pool, *arguments):
        return self.run(pool, [(arguments, None)])[0]

    def change(self, pool, session, **wish):
        command = [os.path.join(self.machine.stage, "bin", "fargpu"), "quota", str(session), "--host", pool]
        for name, value in wish.items():
            command += [f"--{name}", str(value)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def sessions(self, pool):
        done = subprocess.run([os.path.join(self.machine.stage, "bin", "fargpu"), "ls", "-o", "json", "--pool", pool], check=True, stdout=subprocess.PIPE)
        return [session["id"] for session in json.loads(done.stdout)[0]["sessions"]]


def run(bench):
    tenants, add = Tenants(bench), bench.results.add
    seconds, kernel_us = bench.sizes.share_seconds, 1000
    if bench.wants("Q2"):
        for percent in (10, 25, 50, 75):
            for us in (1000, 20000):
                case = f"{percent}%, {us // 1000} ms"
                with bench.attempt(("Q2", "tcp", case)):
                    pool = tenants.pool("fixed")
                    solo = tenants.alone(pool, "spend", seconds, us)["share"]
                    got = tenants.run(pool, [(["spend", seconds, us], {"FARGPU_COMPUTE": f"{percent}%"})])[0]
                    windows = [100 * sum(got["series"][i:i + 10]) / 10 / solo for i in range(0, len(got["series"]) - 9, 10)]
                    add("Q2", "tcp", abs(100 * got["share"] / solo - percent), case, detail={
                        "got": f"{100 * got['share'] / solo:.2f}%", "worst second": f"{max(abs(w - percent) for w in windows):.2f} points off" if windows else "none whole",
                        "series": got["series"]})
    if bench.wants("Q3"):
        with bench.attempt(("Q3", "tcp")):
            rounds, rates = [], {}
            for _ in range(bench.rounds):
                rates = {policy: tenants.alone(tenants.pool(policy), "spend", seconds / 2, 1)["kernels"] for policy in ("free", "fair")}
                rounds.append(100 * (1 - rates["fair"] / rates["free"]))
            add("Q3", "tcp", rounds=rounds, detail={"kernels under free": rates["free"], "under fair": rates["fair"]})
    if bench.wants("Q4", "Q5"):
        with bench.attempt(("Q4", "tcp", "8 equal, Jain"), ("Q5", "tcp")):
            pool = tenants.pool("fair")
            solo = tenants.alone(pool, "spend", seconds, kernel_us)
            got = tenants.run(pool, [(["spend", seconds, kernel_us], None)] * 8)
            work = [one["kernels"] for one in got]
            add("Q4", "tcp", sum(work) ** 2 / (8 * sum(w * w for w in work)), "8 equal, Jain", detail={f"tenant {i} series": one["series"] for i, one in enumerate(got)})
            # In the time from the first one's begin to the last one's end they may have been fewer than eight, which favours nobody.
            add("Q5", "tcp", sum(work) / solo["kernels"], detail={"alone": solo["kernels"], "all eight": sum(work)})
        with bench.attempt(("Q4", "tcp", "3:1, % off")):
            pool = tenants.pool("fair")
            before = set(tenants.sessions(pool))

            def weigh():
                first = min(set(tenants.sessions(pool)) - before)
                tenants.change(pool, first, weight=300)

            got = tenants.run(pool, [(["spend", seconds, kernel_us], None)] * 2, weigh)
            most, least = max(one["kernels"] for one in got), min(one["kernels"] for one in got)
            add("Q4", "tcp", 100 * abs(most / least - 3) / 3, "3:1, % off", detail={"more": most, "less": least, "series of more": max(got, key=lambda o: o["kernels"])["series"]})
    if bench.wants("P1", "P2", "P3"):
        priorities(bench, tenants)


def priorities(bench, tenants):
    add, seconds = bench.results.add, bench.sizes.share_seconds
    critical, background = {"FARGPU_PRIORITY": "latency-critical"}, {"FARGPU_PRIORITY": "best-effort"}
    pool = tenants.pool("fair")
    with bench.attempt(("P1", "tcp"), ("P2", "tcp")):
        request = ["spend", seconds, 1000, 10, 10]  # ten kernels of a millisecond, then a pause of ten
        alone = tenants.run(pool, [(request, critical)])[0]
        solo = tenants.alone(pool, "spend", seconds, 500)
        got, harvest = tenants.run(pool, [(request, critical), (["spend", seconds, 500], background)])
        add("P1", "tcp", got["p99_ms"] / alone["p99_ms"], detail={"alone p99": alone["p99_ms"] / 1e3, "p99": got["p99_ms"] / 1e3, "p50": got["p50_ms"] / 1e3})
        idle = max(1e-9, solo["share"] * (1 - got["share"]))
        add("P2", "tcp", harvest["share"] / idle, detail={"best effort": f"{100 * harvest['share']:.1f}%", "critical": f"{100 * got['share']:.1f}%", "series": harvest["series"]})
    with bench.attempt(("P3", "tcp")):
        request, longest = ["spend", seconds, 100, 1, 7], 2000
        alone = tenants.run(pool, [(request, critical)])[0]
        got, _ = tenants.run(pool, [(request, critical), (["spend", seconds, longest], background)])
        add("P3", "tcp", 1000 * (got["p99_ms"] - alone["p50_ms"]) - longest, detail={"alone p50": alone["p50_ms"] / 1e3, "p99": got["p99_ms"] / 1e3})
