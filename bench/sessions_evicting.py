"""M4 and M6: a session is evicted and comes back. M5: two take turns on a device that has not room for both."""

import concurrent.futures
import json
import os
import re
import subprocess
import sys

from machine import Failed
from tenants import device_mib


def pool_of(tenants, *options):
    return tenants.machine.broker(" ".join(["evicting", *options]).replace(" --", "."), "--warm-workers", "0",
                                  "--evicted-bytes-max", "1TiB", *options)


def fargpu(tenants, pool, *arguments):
    done = subprocess.run([os.path.join(tenants.machine.stage, "bin", "fargpu"), *arguments],
                          env=dict(os.environ, FARGPU_POOL=pool), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"fargpu {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def milliseconds(log, event):
    """How long each took, as the broker's log has it."""
    with open(log) as file:
        return [int(found) for found in re.findall(rf"{event} .*\bms=(\d+)", file.read())]


def there_and_back(bench, tenants):
    """A session that does nothing, whose memory has no zeros; its answer reads all of its memory."""
    mib = bench.sizes.evicted_mib
    with bench.attempt(("M4", "tcp"), ("M6", "tcp")):
        with tenants.started(tenants.LOCAL, "tenant", [(["pinned", min(mib, 1024)], None)]) as (local,):
            copies = []
            for _ in range(bench.rounds + 1):
                local.tell()
                copies.append(local.found(60))
        ideal = sum(min(one[way] for one in copies[1:]) for way in ("down", "up")) * mib / min(mib, 1024)
        pool = pool_of(tenants)
        log = tenants.machine.log_of(pool)
        ratios, later, details = [], [], {}
        with tenants.started(pool, "tenant", [(["answer", mib], None)]) as (tenant,):
            # The first time is not measured: a virtual machine gets its memory when that is touched.
            for _ in range(bench.rounds + 1):
                for _ in range(2):  # the second one is warm
                    tenant.tell()
                    warm = tenant.found(60)
                (session,) = tenants.sessions(pool)
                fargpu(tenants, pool, "evict", str(session))
                away = json.loads(fargpu(tenants, pool, "ls", "-o", "json"))[0]["sessions"][0]["away_bytes"]
                if away < mib << 20:
                    raise Failed(f"{away} of {mib << 20} bytes were evicted")
                tenant.tell()
                cold = tenant.found(120)
                if cold["wrong"] or warm["wrong"]:
                    raise Failed(f"{cold['wrong']} words are wrong")
                later.append(cold["seconds"] - warm["seconds"])
        out, back = milliseconds(log, "session evicted"), milliseconds(log, "session returned")
        del later[0], out[0], back[0]
        for leaving, returning in zip(out, back):
            ratios.append(ideal * 1000 / max(1, leaving + returning))
        details = {"MiB": mib, "left in ms": out, "came back in ms": back, "pinned copies both ways, ms": ideal * 1000}
        bench.results.add("M4", "tcp", rounds=ratios, detail=details)
        bench.results.add("M6", "tcp", rounds=later, detail={"warm, s": warm["seconds"]})


def touch_memory(mib):
    """By several processes, as a virtual machine gets memory slowly. They end, and it stays the machine's."""
    count = max(1, os.cpu_count() // 2)
    program = "import mmap, sys; m = mmap.mmap(-1, int(sys.argv[1]) << 20)\nfor i in range(0, len(m), 4096): m[i] = 1"
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(subprocess.run, [sys.executable, "-c", program, str(mib // count)], check=True)
                     for _ in range(count)]:
            done.result()


def turns(bench, tenants):
    """What both get done together, of what one does alone in the same time. The host's memory has been touched before:
    both sessions' contents are there when they take turns."""
    with bench.attempt(("M5", "tcp")):
        pool = pool_of(tenants, "--memory-oversubscription", "1.5", "--evict-quantum-seconds", "5")
        mib = bench.sizes.turns_mib or int(device_mib("total") * 0.7)
        seconds = bench.sizes.turns_seconds
        wish = (["touch", mib, seconds], {"FARGPU_MEM": f"{mib + 1024}MiB", "FARGPU_GPUS": "1"})

        def steps(count):
            with tenants.started(pool, "tenant", [wish] * count) as running:
                for tenant in running:
                    tenant.tell()
                found = [tenant.found(seconds * 10 + 120) for tenant in running]
            if any(one["wrong"] for one in found):
                raise Failed(f"words are wrong: {found}")
            return [one["steps"] for one in found]

        touch_memory(2 * mib)
        (alone,), both = steps(1), steps(2)
        bench.results.add("M5", "tcp", sum(both) / alone, detail={"MiB each": mib, "alone": alone, "both": both})
