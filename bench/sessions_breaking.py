"""F3: connections of sessions break while their programs compute and copy, by a proxy: behind any byte by a reset, by
one after which they come from another address, or by packets that vanish."""

import contextlib
import os
import random
import select
import statistics
import time

from machine import Asked, Failed

WAYS = {"": "0", ", by lanes": "4"}  # FARGPU_LANES
GREETING_BYTES = 3000  # by which a connection begins, about: each fourth reset comes that soon
LONGEST = 120  # seconds in which a connection breaks, and its session goes on
ROUNDS = 2  # of a program's work at a time


class Lost(Failed):
    """A program did not go on."""


class Line(Asked):
    """A proxy whose connections are broken."""

    def __init__(self, machine, pool):
        super().__init__([os.path.join(machine.bench, "proxy"), "--to", pool, "--threads", "2"], None,
                         machine.log("breaking"))
        machine.running.append(self.process)
        self.pool = "127.0.0.1:" + self.line(20).split()[1].decode()

    def told(self):
        """What it has said and nobody has read: when connections broke, and when the next one came."""
        found = {}
        while b"\n" in self.rest or select.select([self.process.stdout], [], [], 0)[0]:
            found |= self.answer()
        return found


class Session:
    """A program, and its way to the host."""

    def __init__(self, bench, line, program, dice):
        self.line, self.program, self.dice = line, program, dice
        self.moved = 4 * ROUNDS * bench.sizes.break_bytes  # by its work, at least
        self.wrong = 0
        self.ping = self.answer_to("ping", count=20)["seconds"]

    def answer_to(self, case, meanwhile=None, **values):
        try:
            self.program.tell(case, **values)
            if meanwhile:
                meanwhile()
            return self.program.answer(LONGEST)
        except Failed as error:
            raise Lost(str(error)) from None

    def reset(self):
        self.line.tell("cut", bytes=self.dice.randrange(GREETING_BYTES if self.dice.random() < 0.25 else self.moved))

    def come_from_elsewhere(self):
        self.line.tell("from", address=f"127.0.0.{self.dice.randrange(2, 255)}")
        self.reset()

    def fall_silent(self):
        time.sleep(self.dice.random() / 20)  # into a copy up or down, or a wait
        self.line.tell("mute")

    def break_once(self, how):
        """Seconds until it was noticed, and from then until the program got something."""
        meanwhile, told, end = lambda: how(self), {}, time.monotonic() + LONGEST
        while time.monotonic() < end:
            done = self.answer_to("work", meanwhile, count=ROUNDS)
            meanwhile = None
            self.wrong += int(done["wrong"])
            told |= self.line.told()
            if "came" in told and done["ends"][-1] > told["came"]:
                went_on = min(moment for moment in done["ends"] if moment > told["came"])
                return told["came"] - told["broke"], went_on - told["came"] - self.ping
        raise Failed(f"no connection broke and came back for {LONGEST} s: {told}")


HOW = {"reset": Session.reset, "new address": Session.come_from_elsewhere, "blackhole": Session.fall_silent}


def run(bench):
    noticed = []
    with bench.attempt(("F3", "tcp", "noticed")):
        for way, lanes in WAYS.items():
            cases = [f"{case}{way}" for case in ("lost", "wrong results", "goes on")]
            with bench.attempt(*(("F3", "tcp", case) for case in cases)):
                noticed += one_way(bench, lanes, cases)
        if not noticed:
            raise Failed("no session went on after a blackhole")
        bench.results.add("F3", "tcp", rounds=noticed, case="noticed", detail={"longest": max(noticed)})


def one_way(bench, lanes, cases):
    """Seconds until each blackhole was noticed."""
    pool = bench.machine.broker("breaking", "--resume-seconds", "60")
    counts = dict(zip(HOW, bench.sizes.breaks))
    goes_on, noticed, why, wrong, dice = {how: [] for how in HOW}, [], [], 0, random.Random(5)
    for _ in range(bench.rounds):
        for name, how in HOW.items():
            command = [os.path.join(bench.machine.bench, "lasting"), str(bench.sizes.break_bytes)]
            with contextlib.ExitStack() as stack:
                line = Line(bench.machine, pool)
                stack.callback(line.end)
                program = stack.enter_context(
                    bench.machine.asked(command, line.pool, {"FARGPU_LANES": lanes}, f"lasting.{name}"))
                session = Session(bench, line, program, dice)
                try:
                    for _ in range(counts[name]):
                        seen, later = session.break_once(how)
                        goes_on[name].append(1000 * later)
                        noticed += [seen] if name == "blackhole" else []
                except Lost as error:
                    why.append(f"{name}: {' '.join(str(error).split())}")
                wrong += session.wrong
    lost, wrongly, on = cases
    bench.results.add("F3", "tcp", len(why), lost,
                      detail={"sessions": bench.rounds * len(HOW),
                              **{f"{name} times": len(found) for name, found in goes_on.items()},
                              **({"why": "; ".join(why)} if why else {})})
    bench.results.add("F3", "tcp", wrong, wrongly)
    every = [later for found in goes_on.values() for later in found]
    if not every:
        raise Failed("no session went on")
    bench.results.add("F3", "tcp", rounds=every, case=on, detail={
        **{name: statistics.median(found) / 1000 for name, found in goes_on.items() if found},
        "longest": max(every) / 1000})
    return noticed
