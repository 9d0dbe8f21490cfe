"""Starting: S1, S2, S7."""

import json
import os
import statistics
import time

from machine import HERE, Failed
from rounds import in_turn, middle, ratios


def run(bench):
    machine, add = bench.machine, bench.results.add
    control = os.path.join(machine.bench, "control")

    def told(command, pool=None, timeout=150):
        text, _ = machine.run(command, pool, timeout=timeout)
        return json.loads(text.strip().splitlines()[-1])

    if bench.wants("S1"):
        with bench.attempt(("S1", "tcp")):
            pool = machine.broker()
            told([control, "start"], pool)  # the host knows the image then, and has a worker ready

            def remotely():
                time.sleep(min(2, bench.sizes.idle_seconds))  # the next worker gets ready
                return told([control, "start"], pool)

            found = in_turn(bench.rounds, {"local": lambda: told([control, "start"]), "remote": remotely})
            add("S1", "tcp", rounds=ratios(found["remote"], found["local"], "kernel", "context"), detail={
                "N to a context": middle(found["local"], "context"), "N to a kernel": middle(found["local"], "kernel"),
                "T to a context": middle(found["remote"], "context"),
                "T to a kernel": middle(found["remote"], "kernel")})
    if bench.wants("S2"):
        with bench.attempt(("S2", "tcp")):
            mark = f"{os.getpid()}.{time.time_ns()}"
            size = bench.sizes.image_bytes
            machine.run([control, "image", "0", mark], machine.broker())  # the host has the program's other image then
            without, first, second = (machine.counters([control, "image", str(bytes_), mark], machine.broker(), [])
                                      for bytes_ in (0, size, size))
            pieces = [counters.operations.get("sendImage", 0) for counters in (without, first, second)]
            if pieces[1] == pieces[0]:
                raise Failed("the first session did not send the image")
            # Asking whether the host has it takes some bytes too, and is told apart.
            add("S2", "tcp", second.sent - without.sent if pieces[2] > pieces[0] else 0, detail={
                "of an image of bytes": size, "first session's bytes": first.sent - without.sent,
                "second session's bytes, asking included": second.sent - without.sent})
    if bench.wants("S7"):
        first_step(bench, told)


def first_step(bench, told):
    machine, add = bench.machine, bench.results.add
    script = ["python3", os.path.join(HERE, "programs", "first_step.py")]
    transports = machine.transports([rtt for rtt in bench.rtts if rtt in (1, 30)], bench.rate)
    with bench.attempt(*(("S7", t.name) for t in transports)):
        told(script, transports[0].pool)  # the host has the images then
        rounds = min(3, bench.rounds)  # each takes seconds for each way
        found = in_turn(rounds, {"local": lambda: told(script),
                                 **{t.name: lambda t=t: told(script, t.pool) for t in transports}})
        for t in transports:
            add("S7", t.name, rounds=ratios(found[t.name], found["local"], "seconds"), detail={
                "N": middle(found["local"], "seconds"), "T": middle(found[t.name], "seconds"),
                "import N": middle(found["local"], "import"),
                "import T": middle(found[t.name], "import"),
                "losses": "equal" if len({a["loss"] for f in found.values() for a in f}) == 1 else
                f"{statistics.median(a['loss'] for a in found['local'])} and "
                f"{statistics.median(a['loss'] for a in found[t.name])}"})
