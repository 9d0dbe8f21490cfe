"""Two hosts in one program: G1 to G3, and C3, where one of them dies. Both are brokers of this machine. Where it has
two devices, each has one of them; what goes from the one to the other goes by TCP all the same. And UCX: R1, R2."""

import contextlib
import os
import signal
import subprocess
import time

import hosts_ucx
from machine import Failed, Transport, per_unit
from rounds import field, in_sets, middle, ratios, spread

LANES = 4  # of a link (limits::link_lanes)
LINE = 2000  # MB/s, of each host's line in G1
LINE_RTT = 0.001  # seconds
PING_BYTES = 64
HOSTS = {"FARGPU_HOSTS": "2"}
CALLS = ("alloc", "upload", "download", "synchronize", "query", "peer")  # of C3, each by a program of its own
BESIDE = 4  # programs of C3 on the other host alone
SILENCE = 5  # seconds: the setting in C3
NOTICED = 0.5  # seconds within which a program notices that so long nothing came


def run(bench):
    hosts_ucx.run(bench)
    if "tcp" not in bench.machine.kinds:
        return
    if bench.wants("C3"):
        with bench.attempt(("C3", "tcp", "disturbed"), ("C3", "tcp", "without an answer")):
            losing(bench)
    if not bench.wants("G1", "G2", "G3"):
        return
    with bench.attempt(("G1", "tcp"), ("G2", "tcp"), ("G3", "tcp", "time"), ("G3", "tcp", "round trips")):
        brokers = [bench.machine.broker(name, *(["--devices", str(number)] if two_devices() else []))
                   for number, name in enumerate(("host.one", "host.other"))]
        pool = ",".join(brokers)
        loopback = bench.machine.transports([])[0]
        if bench.wants("G1"):
            uploading(bench, brokers)
        if bench.wants("G2"):
            copying(bench, pool, loopback)
        if bench.wants("G3"):
            waiting(bench, pool, loopback)


def two_devices():
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60).stdout.count("GPU ") > 1
    except OSError:
        return False


def program(bench):
    return [os.path.join(bench.machine.bench, "hosts")]


def uploading(bench, brokers):
    """To both hosts at once, and to each alone, each by a line of its own; and what a plain socket loses by such a
    line."""
    machine = bench.machine
    lines = [machine.proxy(to, LINE_RTT, LINE) for to in brokers]
    plain_line = Transport("", LINE_RTT, "", tuple(machine.proxy(machine.socket_server(), LINE_RTT, LINE).split(":")))
    size, copies = bench.sizes.bytes, bench.sizes.copies

    def parts(stack):
        hosts = stack.enter_context(machine.asked(program(bench), ",".join(lines), HOSTS))
        plain = stack.enter_context(machine.plain(plain_line))
        turns = {to: lambda to=to: hosts.ask("upload", to=to, bytes=size, count=copies)
                 for to in ("both", "first", "other")}
        turns["S"] = lambda: plain.ask("stream", streams=LANES, memory="whole", bytes=size, count=copies,
                                       direction="htod")
        for turn in turns.values():
            turn()
        return turns

    found = in_sets(bench, parts)
    shares = [(2 / both["upload"]) / (1 / first["upload"] + 1 / other["upload"])
              for both, first, other in zip(found["both"], found["first"], found["other"])]
    rates = {f"{to} GB/s": size * (2 if to == "both" else 1) / 1e9 / middle(found[to], "upload")
             for to in ("both", "first", "other")}
    line = size / 1e9 / middle(found["S"], "copy")
    bench.results.add("G1", "tcp", rounds=shares,
                      detail={**rates, "S GB/s": line, "of the line %": 100 * line * 1e3 / LINE})


def copying(bench, pool, loopback):
    """A copy from host to host, and what as many plain sockets carry, in turn."""
    size, copies = bench.sizes.bytes, bench.sizes.copies

    def parts(stack):
        hosts = stack.enter_context(bench.machine.asked(program(bench), pool, HOSTS))
        plain = stack.enter_context(bench.machine.plain(loopback))
        turns = {"T": lambda: hosts.ask("copy", bytes=size, count=copies),
                 "S": lambda: plain.ask("stream", streams=LANES, memory="whole", bytes=size, count=copies,
                                        direction="htod")}
        for turn in turns.values():
            turn()  # warms up, and makes the link
        return turns

    found = in_sets(bench, parts)
    rates = {f"{name} GB/s": size / 1e9 / middle(found[name], "copy") for name in found}
    bench.results.add("G2", "tcp", rounds=ratios(found["S"], found["T"], "copy"),
                      detail={**rates, "k": LANES, "T / S": spread(ratios(found["S"], found["T"], "copy"))})


def waiting(bench, pool, loopback):
    """A stream that waits for an event of the other host, or of the same one, and a ping-pong, in turn."""
    count = max(10, bench.sizes.calls // 10)

    def parts(stack):
        hosts = stack.enter_context(bench.machine.asked(program(bench), pool, HOSTS))
        plain = stack.enter_context(bench.machine.plain(loopback))
        turns = {"T": lambda: hosts.ask("wait", count=count, apart=1),
                 "N": lambda: hosts.ask("wait", count=count, apart=0),
                 "P": lambda: plain.ask("pingpong", count=count, bytes=PING_BYTES, spin=0)}
        for turn in turns.values():
            turn()
        return turns

    found = in_sets(bench, parts)
    times = zip(*(field(found[name], "seconds") for name in ("T", "N", "P")))
    bench.results.add("G3", "tcp", case="time", rounds=[(t - n) / p for t, n, p in times],
                      detail={name: middle(found[name], "seconds") for name in found})

    def trips(apart):
        few, many = (bench.machine.counters(program(bench), pool, [("wait", {"count": number, "apart": apart})], HOSTS)
                     for number in (10, 110))
        return per_unit(few, many, 100)[0]

    apart, beside = trips(1), trips(0)
    if beside < 1:
        raise Failed(f"the program waits at the end of each round, and {beside:g} round trips are counted")
    bench.results.add("G3", "tcp", apart - beside, case="round trips", detail={"apart": apart, "beside": beside})


def losing(bench):
    """A host falls silent, as it does when it loses its power: programs with devices of it and of another one, and
    programs of that one alone."""
    machine = bench.machine
    settings = ["--silence-seconds", str(SILENCE), "--resume-seconds", "0"]
    dies, lives = (machine.broker(name, *settings) for name in ("host.dies", "host.lives"))
    line = machine.proxy(dies, 0)
    way = machine.running[-1]
    with contextlib.ExitStack() as stack:
        spanning = {call: stack.enter_context(machine.asked(program(bench), f"{line},{lives}", HOSTS, f"loses.{call}"))
                    for call in CALLS}
        beside = [stack.enter_context(machine.asked(program(bench), lives, label=f"beside.{number}"))
                  for number in range(BESIDE)]
        for one in beside:
            one.ask("wait", count=1, apart=0)
        for call, one in spanning.items():
            one.tell("lose", call=call)
        for one in beside:
            one.tell("wait", count=bench.sizes.beside_waits, apart=0)
        time.sleep(1)
        os.kill(way.pid, signal.SIGSTOP)
        stack.callback(os.kill, way.pid, signal.SIGCONT)
        took, disturbed = {}, []
        for name, one in (*spanning.items(), *((f"beside {n}", one) for n, one in enumerate(beside))):
            try:
                answer = one.answer(timeout=150)
                if name in spanning:
                    took[name] = answer["seconds"]
            except Failed as error:
                disturbed.append(f"{name}: {error}")
        for one in beside:
            one.ask("wait", count=10, apart=0)
    detail = {"programs with both hosts": len(CALLS), "beside": BESIDE, "silence_seconds": SILENCE,
              "slowest s": max(took.values(), default=0), **({"what": "; ".join(disturbed)} if disturbed else {})}
    bench.results.add("C3", "tcp", value=len(disturbed), case="disturbed", detail=detail)
    late = len(CALLS) - sum(seconds <= SILENCE + NOTICED for seconds in took.values())
    bench.results.add("C3", "tcp", value=late, case="without an answer",
                      detail={f"{call} s": took.get(call, 0) for call in CALLS})
