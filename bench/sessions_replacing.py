"""F4: a broker is killed, or leaves in order, while programs compute and copy, and the next one takes over their
sessions."""

import contextlib
import json
import os
import signal
import subprocess
import time

from machine import Failed

HOW = {"kill -9": signal.SIGKILL, "in order": signal.SIGUSR1}
PROGRAMS = 4
MIB = 64  # of memory, that each has a lease of
LONGEST = 60  # seconds until sessions count
NAME = "replaced"


def run(bench):
    cases = ("lost", "count again after")
    with bench.attempt(*(("F4", "tcp", case) for case in cases)), contextlib.ExitStack() as stack:
        machine = bench.machine
        options = ["--runtime-folder", os.path.join(machine.socket_folder.name, NAME)]
        pool = machine.broker(NAME, *options)
        bytes_ = min(bench.sizes.break_bytes, MIB << 19)
        programs = [stack.enter_context(machine.asked(
            [os.path.join(machine.bench, "lasting"), str(bytes_)], pool,
            {"FARGPU_MEM": f"{MIB}MiB", "FARGPU_GPUS": "1"}, f"lasting.{number}")) for number in range(PROGRAMS)]
        for program in programs:
            program.ask("work", count=1)
        before = until_told(machine, pool, lambda found: len(found) == PROGRAMS and all(found.values()))
        took, lost = {how: [] for how in HOW}, []
        for _ in range(bench.rounds):
            for how, number in HOW.items():
                for program in programs:
                    program.tell("work", count=1, milliseconds=round(1000 * bench.sizes.replaced_seconds))
                time.sleep(bench.sizes.replaced_seconds / 4)
                begin = time.monotonic()
                machine.next_broker(NAME, number, *options)
                until_told(machine, pool, lambda found: found == before)
                took[how].append(time.monotonic() - begin)
                for program in list(programs):
                    try:
                        if wrong := program.answer(LONGEST)["wrong"]:
                            raise Failed(f"{wrong} pieces of memory are wrong")
                    except Failed as error:
                        lost.append(f"{how}: {' '.join(str(error).split())}")
                        programs.remove(program)
        bench.results.add("F4", "tcp", len(lost), cases[0],
                          detail={"sessions": PROGRAMS, **{f"{how} times": len(found) for how, found in took.items()},
                                  **({"why": "; ".join(lost)} if lost else {})})
        bench.results.add("F4", "tcp", rounds=[one for found in took.values() for one in found], case=cases[1],
                          detail={f"{how}, longest": max(found) for how, found in took.items()})


def until_told(machine, pool, right):
    """The broker there tells what sessions hold: {the program: its lease and its memory}."""
    end, found = time.monotonic() + LONGEST, {}
    while time.monotonic() < end:
        done = subprocess.run([os.path.join(machine.stage, "bin", "fargpu"), "ls", "-o", "json", "--pool", pool],
                              capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found = {session["pid"]: (session["lease"], sum(session["memory_bytes"]))
                     for session in json.loads(done.stdout)[0]["sessions"]}
            if right(found):
                return found
    raise Failed(f"the broker tells of other sessions after {LONGEST} s: {found}")
