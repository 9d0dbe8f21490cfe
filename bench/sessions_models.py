"""M7: inference models that have together twice the memory that they share. A session that nobody evicts holds the rest
of the device. Each model is asked at random moments, as by users who know nothing of each other; the answers come later
where a model was evicted, and are the same."""

import concurrent.futures
import contextlib
import datetime
import json
import os
import random
import re
import statistics
import time

from machine import HERE, Failed
from sessions_evicting import fargpu, pool_of, touch_memory
from tenants import device_mib

MODELS = 8
ROOM = 4.1  # models for which there is room: as the driver takes some for itself, a little more than four
COMMAND = ("/usr/bin/env", "python3", os.path.join(HERE, "programs", "inference.py"))
QUANTILES = {"p50": 50, "p90": 90, "p99": 99}
KINDS = ("warm", "after eviction")
LOGGED_LATE = 0.05  # seconds, by which the host's log may tell that a session returned after its program answered
ASKED_AT, LATER = "asked at series", "answered after series"


def run(bench, tenants, command=COMMAND):
    cases = [f"{kind}, {name}" for kind in KINDS for name in QUANTILES] + ["wrong answers"]
    with bench.attempt(*(("M7", "tcp", case) for case in cases)), contextlib.ExitStack() as stack:
        sizes = bench.sizes
        pool = pool_of(tenants, "--memory-oversubscription", "2")
        touch_memory(MODELS * sizes.model_mib)
        program, *words = command
        lease = {"FARGPU_MEM": f"{sizes.model_mib * 5 // 4 + 16}MiB", "FARGPU_GPUS": "1"}
        models = stack.enter_context(
            tenants.started(pool, program, [([*words, sizes.model_mib], lease)] * MODELS))
        held = [sum(session["memory_bytes"]) >> 20 for session in host(tenants, pool)["sessions"]]
        rest = round(free_mib(tenants, pool) - sizes.context_mib + sum(held) - ROOM * sum(held) / MODELS)
        if rest <= 0:
            raise Failed(f"there is no room for {MODELS} models of {sizes.model_mib} MiB at first")
        stack.enter_context(tenants.started(
            pool, "tenant", [(["hold", rest], {"FARGPU_MEM": f"{rest + sizes.context_mib + 16}MiB",
                                                           "FARGPU_GPUS": "1"})]))
        begin = time.time()
        with concurrent.futures.ThreadPoolExecutor(MODELS) as asking:
            answers = list(asking.map(lambda number: asked(models[number], moments(sizes, number), begin),
                                      range(MODELS)))
        report(bench, tenants, pool, begin, answers, {
            "models": MODELS, "MiB each": held[0], "MiB for all": round(ROOM * sum(held) / MODELS),
            "seconds between questions to one": sizes.model_pause})


def host(tenants, pool):
    return json.loads(fargpu(tenants, pool, "ls", "-o", "json"))[0]


def free_mib(tenants, pool):
    """Of the device: as NVML has it, or where that is not, by the host's books."""
    try:
        return device_mib("free")
    except Failed:
        device = host(tenants, pool)["devices"][0]
        return (device["memory_bytes"] - device["used_bytes"]) >> 20


def moments(sizes, number):
    """When a model is asked: a Poisson process, the same one in each run."""
    dice, moment, found = random.Random(number), 0.0, []
    while (moment := moment + dice.expovariate(1 / sizes.model_pause)) < sizes.model_seconds:
        found.append(moment)
    return found


def asked(model, when, begin):
    """What became of each question. One that comes before the answer to the one before it waits for that."""
    found = []
    for moment in when:
        time.sleep(max(0.0, begin + moment - time.time()))
        model.tell()
        wrong = model.found(300)["wrong"]
        there = time.time()
        found.append({"moment": moment, "there": there, "after": there - begin - moment, "wrong": bool(wrong),
                      "pid": model.process.pid})
    return found


def logged(log, event):
    """{session: when, in seconds of the clock}"""
    found = {}
    with open(log) as file:
        for when, session in re.findall(rf"(?m)^(\S+) \w+ {event} .*?\bsession=(\d+)", file.read()):
            found.setdefault(int(session), []).append(datetime.datetime.fromisoformat(when).timestamp())
    return found


def report(bench, tenants, pool, begin, answers, detail):
    log = tenants.machine.log_of(pool)
    sessions = {session["pid"]: session["id"] for session in host(tenants, pool)["sessions"]}
    returned, evicted = (logged(log, f"session {what}") for what in ("returned", "evicted"))
    kinds = {kind: [] for kind in KINDS}
    for one in (one for each in answers for one in each):
        back = [when for when in returned.get(sessions[one["pid"]], [])
                if begin + one["moment"] <= when <= one["there"] + LOGGED_LATE]
        kinds[KINDS[bool(back)]].append(one)
    asked_sessions = {sessions[one["pid"]] for each in answers for one in each}
    detail["evictions meanwhile"] = sum(when >= begin for one in asked_sessions for when in evicted.get(one, []))
    for kind, found in kinds.items():
        if len(found) < 2:
            raise Failed(f"{len(found)} answers were {kind}")
        later = [one["after"] for one in found]
        bounds = statistics.quantiles(later, n=100, method="inclusive")
        series = {ASKED_AT: [one["moment"] for one in found], LATER: later}
        for name, percent in QUANTILES.items():
            bench.results.add("M7", "tcp", bounds[percent - 1], f"{kind}, {name}",
                              detail={"answers": len(found), **(detail | series if name == "p50" else {})})
    bench.results.add("M7", "tcp", sum(one["wrong"] for each in answers for one in each), "wrong answers",
                      detail={"answers": sum(map(len, answers))})
