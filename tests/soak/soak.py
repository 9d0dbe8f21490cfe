"""What runs at once in a soak, and what happens to it."""

import collections
import contextlib
import os
import random
import signal
import threading
import time

from rig import wait_until

from host import RESUME_SECONDS, Host, numbers
from programs import Long, Short

# What happens to programs, and how often; those that are quick have ended before it does.
FATES = {None: 80, "killed": 10, "lost their worker": 10}
REFUSED_MAX = 3  # seconds for which a cut program is not let through


class Soak:
    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.faults = []
        self.running = set()
        self.counts = collections.Counter()
        self.grown = {}  # of long-lived programs, what it is and by how much
        self.host = Host(options.sessions, options.memory, options.log, self.fault)

    def fault(self, text):
        with self.lock:
            self.faults.append(text)
        print(f"FAULT at {time.strftime('%H:%M:%S')}: {text}", flush=True)

    def count(self, what, number=1):
        with self.lock:
            self.counts[what] += number

    def run_one(self, program, chance):
        fate = chance.choices(list(FATES), FATES.values())[0]
        strike = threading.Timer(chance.uniform(0.01, program.lasts), self.strike, (fate, program))
        with self.lock:
            self.running.add(program)
        if fate:
            strike.start()
        try:
            program.run()
        except Exception as error:  # Wrong, and what nobody has thought of
            self.fault(f"{program.name}, {program.happened or 'well'}, cut {program.cuts} times: {error!r}"
                       .replace("\\n", "\n"))
        finally:
            strike.cancel()
            with self.lock:
                self.running.remove(program)
            program.close()
        self.count("programs")
        self.count("of them cut", bool(program.cuts))
        if program.happened:
            self.count(program.happened)
        with self.lock:
            for what, number in program.grown.items():
                self.grown.setdefault(what, []).append(number)

    def strike(self, fate, program):
        if fate == "killed":
            program.happened = fate
            program.kill()
        else:
            with contextlib.suppress(Exception):  # it has none, or there is no broker to ask
                worker = next(s["worker"] for s in self.host.broker.sessions() if s["pid"] == program.pid)
                program.happened = fate
                os.kill(worker, signal.SIGKILL)

    def cut(self, chance):
        with self.lock:
            program = chance.choice([program for program in self.running if program.relay] or [None])
        if not program:
            return
        # A program that has no session yet gives up soon where it is not let through.
        how = chance.choices(("at once", "within a copy", "refused", "silence"), (5, 3, 1, 1) if program.settled
                             else (1, 0, 0, 0))[0]
        if how == "at once":
            program.relay.cut()
        elif how == "within a copy":
            program.relay.cut_after(chance.randrange(1 << 18))
        elif how == "silence":
            program.relay.mute()
        else:
            program.relay.refuse()
            program.relay.cut()
            again = threading.Timer(chance.uniform(0, REFUSED_MAX), program.relay.refuse, (False,))
            again.start()
        program.cuts += 1
        self.count("connections cut")

    def evict(self, chance):
        self.count("evictions by request", self.host.evict(chance))

    def again_and_again(self, action, seconds, end, chance):
        """An action each so many seconds on average, until the end."""
        while seconds and time.monotonic() < end:
            time.sleep(min(chance.uniform(0, 2 * seconds), max(0, end - time.monotonic())))
            try:
                action(chance)
            except Exception as error:  # a broker that does not start, for one
                self.fault(f"{action.__name__}: {error!r}")
                return

    def next_program(self, place, end, chance):
        if place % 4 == 0:
            return Short(self.host, chance)
        lasts = chance.uniform(10, 1.5 * self.options.round)
        return Long(self.host, chance, self.options.pause, min(end, time.monotonic() + lasts))

    def round(self, number):
        end = time.monotonic() + self.options.round

        def chance_of(what):
            return random.Random(f"{self.options.seed}.{number}.{what}")

        def programs(place, chance):
            while time.monotonic() < end:
                time.sleep(chance.uniform(0, 2 * self.options.pause))
                if not self.host.running():
                    return
                self.run_one(self.next_program(place, end, chance), chance)

        threads = [threading.Thread(target=programs, args=(place, chance_of(place)))
                   for place in range(self.options.sessions)]
        happens = ((self.cut, self.options.cut_seconds), (self.evict, self.options.evict_seconds),
                   (self.host.replace, self.options.restart_seconds))
        threads += [threading.Thread(target=self.again_and_again, args=(*what, end, chance_of(what[0].__name__)))
                    for what in happens]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(5)
                self.host.read_log()

    def rest(self):
        """Waits until nothing is left; what the broker has then."""
        left = {}

        def nothing():
            nonlocal left
            left = self.host.left()
            time.sleep(0.1)
            return not left

        try:
            # A program that was killed while it was cut is waited for as long as any.
            wait_until(nothing, "nothing left", seconds=RESUME_SECONDS + 60)
        except AssertionError as error:
            raise AssertionError(f"{error}: {left}") from None
        time.sleep(1.5)  # for what the broker does once a second
        return {**numbers(self.host.broker.pid), "processes": len(self.host.workers())}
