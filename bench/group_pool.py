"""A pool of many hosts by a registry: C1, whose hosts are simulated, in one process; another one places and asks. etcd,
the members and the placement are real. C2, whose parts die again and again, if it is named."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

from goals import HERE
from machine import Failed
from rounds import in_turn, middle, spread

DEVICES = 8  # of a host
AT_ONCE = 64  # clients that ask for leases as fast as they get them
GANGS = 10  # every tenth lease is one of a gang
COUNTED = ("double grants", "leases lost", "left over")


def run(bench):
    if "tcp" not in bench.machine.kinds:
        return
    if bench.wants("C1"):
        measured(bench, "", tenants=50, queue=0, gangs=0)
        measured(bench, ", one tenant", tenants=1, queue=bench.sizes.pool_queue, gangs=GANGS)
    if "C2" in bench.rows:  # half an hour
        faults(bench, 5)


def faults(bench, hosts):
    places = {case: ("C2", "tcp", case) for word in COUNTED for case in (word, f"{word}, {hosts} hosts")}
    with bench.attempt(*places.values()), tempfile.NamedTemporaryFile() as out:
        command = [os.path.join(os.path.dirname(HERE), "tests", "system", "pool_faults"), "--minutes",
                   str(bench.sizes.pool_minutes), "--hosts", str(hosts), "--clients", str(bench.sizes.pool_clients),
                   "--out", out.name]
        done = subprocess.run([sys.executable, *command], env=dict(os.environ, FARGPU_BUILD=bench.machine.stage),
                              stdout=subprocess.PIPE, text=True, check=False)
        with open(bench.machine.log("pool_faults"), "w") as log:
            log.write(done.stdout)
        try:
            found = json.load(out)
        except ValueError:
            raise Failed(f"pool_faults said: {done.stdout[-300:]}") from None
        about = {name: found[name] for name in ("jobs", "finished", "without a lease", "clients")}
        about |= {"minutes": round(found["minutes"]), "faults": sum(found["faults"].values())}
        for case, place in places.items():
            bench.results.add(*place[:2], value=found[case.split(",")[0]], case=case, detail=about)


def measured(bench, case, tenants, queue, gangs):
    sizes, about = bench.sizes, {"tenants": tenants, "gangs": gangs}
    with bench.attempt(("C1", "tcp", f"p50{case}"), ("C1", "tcp", f"grants/s{case}")), contextlib.ExitStack() as stack:
        program = os.path.join(bench.machine.bench, "pool")
        if not os.access(program, os.X_OK):
            raise Failed("it was built without gRPC")
        endpoint = stack.enter_context(etcd(bench.machine))
        hosts = stack.enter_context(bench.machine.asked([program, endpoint], label="pool.hosts"))
        front = stack.enter_context(bench.machine.asked([program, endpoint], label="pool.front"))
        joined = hosts.ask("join", hosts=sizes.pool_hosts, devices=DEVICES, prefix="h", timeout=300)
        front.ask("join", hosts=1, devices=0, prefix="front", places=1)
        front.ask("place", hosts=sizes.pool_hosts + 1)
        filled = front.ask("fill", count=sizes.pool_leases, tenants=tenants, queue=queue, timeout=300)
        found = in_turn(bench.rounds, {
            "raw": lambda: front.ask("raw", count=2 * sizes.pool_grants),
            "grant": lambda: front.ask("grants", count=sizes.pool_grants, **about),
            "rate": lambda: front.ask("rate", milliseconds=round(1000 * sizes.pool_seconds), at_once=AT_ONCE, **about)})
        refused = hosts.ask("refused")["refused"]
        if refused:
            raise Failed(f"{refused:.0f} leases were placed at hosts that had no room for them")
        bench.results.add(
            "C1", "tcp", case=f"p50{case}",
            rounds=[grant["seconds"] / raw["seconds"] for grant, raw in zip(found["grant"], found["raw"])],
            detail={"grant": middle(found["grant"], "seconds"), "its p99": middle(found["grant"], "seconds_p99"),
                    "transaction": middle(found["raw"], "seconds"), "hosts": sizes.pool_hosts,
                    "leases": round(filled["leases"]), "waiting": round(filled["waiting"]),
                    "joining of all": joined["whole"], "cores": os.cpu_count()})
        rates = [one["grants"] / one["seconds"] for one in found["rate"]]
        bench.results.add("C1", "tcp", case=f"grants/s{case}", rounds=rates,
                          detail={"at once": AT_ONCE, "rounds": spread(rates)})


@contextlib.contextmanager
def etcd(machine):
    """One member, on loopback; the address of it."""
    program = shutil.which("etcd")
    if not program:
        raise Failed("there is no etcd on this machine (package etcd-server)")
    with tempfile.TemporaryDirectory() as folder, open(machine.log("etcd"), "w") as log:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        process = subprocess.Popen([program, "--data-dir", folder, "--name", "one", "--listen-client-urls", client,
                                    "--advertise-client-urls", client, "--listen-peer-urls", peer,
                                    "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"],
                                   stdout=log, stderr=log)
        try:
            machine.wait_for(process, log.name, "(ready to serve client requests)")
            yield client
        finally:
            process.terminate()
            process.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
