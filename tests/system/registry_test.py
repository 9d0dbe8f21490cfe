"""A pool of hosts by a registry: real etcd, and brokers that place leases by it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

from rig import SystemTest, fargpu, paths, wait_until
from rig.broker import settings_file
from rig.process import Process, run
from rig.proxy import Proxy

ETCD = shutil.which("etcd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/bin")
SHOW = ("sh", "-c", "echo $FARGPU_POOL")
HOLD = ("sh", "-c", "echo $FARGPU_POOL $FARGPU_SPLIT; read line")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Etcd:
    """A member of an etcd on this machine, which is the only one if no other peers are named; it can be stopped and
    started again."""

    def __init__(self, *options, scheme="http", peers=None, place=0):
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.TemporaryDirectory(dir=base)
        self.client = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.client}"
        self.options = options
        self.peers, self.place = peers or [free_port()], place
        self.process = None
        if not peers:
            self.start()

    @classmethod
    def three(cls):
        """Members of one etcd."""
        peers = [free_port() for _ in range(3)]
        members = [cls(peers=peers, place=place) for place in range(3)]
        for member in members:
            member.begin()
        for member in members:
            member.serves()
        return members

    def begin(self):
        peers = [f"http://127.0.0.1:{peer}" for peer in self.peers]
        own = peers[self.place]
        self.process = Process([
            ETCD, "--data-dir", self.folder.name, "--name", f"m{self.place}", "--listen-client-urls", self.url,
            "--advertise-client-urls", self.url, "--listen-peer-urls", own, "--initial-advertise-peer-urls", own,
            "--initial-cluster", ",".join(f"m{i}={peer}" for i, peer in enumerate(peers)), *self.options])

    def serves(self):
        self.process.err.find(lambda line: "ready to serve client requests" in line or "serving client" in line)

    def start(self):
        self.begin()
        self.serves()

    def leads(self):
        done = run(["etcdctl", "--endpoints", self.url, "endpoint", "status", "-w", "json"], env={"ETCDCTL_API": "3"})
        status = json.loads(done.out)[0]["Status"]
        return status["leader"] == status["header"]["member_id"]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.close()

    def keys(self):
        """All keys, with etcd's own tool."""
        done = run(["etcdctl", "--endpoints", self.url, "get", "fargpu/", "--prefix", "--keys-only"],
                   env={"ETCDCTL_API": "3"})
        return done.out.split()

    def close(self):
        self.process.close()
        self.folder.cleanup()


@unittest.skipUnless(ETCD, "there is no etcd on this machine (package etcd-server)")
class RegistryTest(SystemTest):
    """What all have."""

    def setUp(self):
        self.etcd = Etcd()
        self.addCleanup(self.etcd.close)

    def member(self, name, *options, devices=1, joined=True, env=None, **more):
        host = self.broker("--pool", "p", "--pool-registry", self.etcd.url, "--pool-host", name, *options,
                           env={"FARGPU_FAKE_DEVICES": devices, "FARGPU_FAKE_HOST": sum(name.encode()) % 200,
                                **(env or {})}, **more)
        if joined:
            host.log("joined pool")
        return host

    def members(self, number, *options, **more):
        hosts = [self.member(f"h{i + 1}", *options, **more) for i in range(number)]
        self.seen(hosts[0], number)
        return hosts

    def seen(self, host, number):
        """Waits until the pool has so many hosts and somebody places."""
        def complete():
            pool = self.pool_of(host)
            return len(pool["hosts"]) == number and pool["placer"]
        wait_until(complete, f"{number} hosts in the pool")
        time.sleep(0.3)  # for the placer to have heard of all of them

    def pool_of(self, host):
        return host.status()["pool"]

    def job(self, host, *options, program=HOLD, env=None):
        """A job that says where it is, and keeps that until it is told to go on."""
        return self.start([paths.FARGPU, "run", *options, "--", *program],
                          env={"FARGPU_POOL": host.pool, **(env or {})})

    def where(self, job, seconds=30):
        line = job.out.find(lambda text: text, seconds=seconds)[0].split()
        return self.hosts_of(line[0])

    @staticmethod
    def hosts_of(pool):
        """A host is named with its scheme where the pool has chosen it."""
        return [address.removeprefix("tcp://") for address in pool.split(",")]

    def end(self, job):
        job.send_line("on")
        self.assertEqual(job.wait(), 0, job.err.text())


class Placing(RegistryTest):
    def test_a_job_lands_on_the_host_that_has_room(self):
        one, two = self.members(2)
        first = self.job(one, "-n", "1", "-c", "100%")
        second = self.job(one, "-n", "1", "-c", "100%")
        self.assertEqual({*self.where(first), *self.where(second)}, {one.pool, two.pool})
        done = fargpu("run", "-n", "1", "-c", "100%", "--", "true", pool=one.pool)
        self.assertEqual(done.code, 75, done.err)
        self.assertIn("--wait", done.err)
        placer = one if self.pool_of(one)["placer"] == "h1" else two
        self.assertEqual(len(placer.logged("pool refuses")), 1)
        self.end(first)
        third = self.job(two, "-n", "1", "-c", "100%", "--wait", "20s")
        self.assertEqual(self.where(third), self.where(first))
        self.end(third)
        self.end(second)
        wait_until(lambda: not any("/lease/" in key for key in self.etcd.keys()), "no lease is left in the registry")

    def test_all_programs_of_a_job_are_at_its_host(self):
        one, two = self.members(2)
        first = self.job(one, "-n", "1", "-c", "100%")
        taken = self.where(first)[0]
        full, free = (one, two) if taken == one.pool else (two, one)
        done = fargpu("run", "-n", "1", "-c", "100%", "--", "sh", "-c",
                      f"{paths.PROGRAMS}/lives hold 2>&1 < /dev/null | head -0; echo $FARGPU_POOL", pool=full.pool)
        self.assertEqual((done.code, self.hosts_of(done.out.strip())), (0, [free.pool]), done.err)
        self.end(first)

    def test_a_program_without_a_job_prefers_the_host_that_was_asked_and_is_redirected(self):
        one, two = self.members(2, "--sessions-max", "1")
        clients = [self.client(two, "init") for _ in range(2)]
        self.assertEqual([len(host.sessions()) for host in (two, one)], [1, 1])
        for client in clients:
            self.assertEqual(client.finish(), 0)

    def test_a_client_that_follows_no_places_has_the_host_that_was_asked_or_none(self):
        one, two = self.members(2)
        first = self.job(one, "-n", "1", "-c", "100%")
        full = one if self.where(first)[0] == one.pool else two
        old = self.connection(full)
        from rig import wire
        old.say(f"(hello = ({wire.VERSION}, oldestProtocol = 3))")
        self.assertIn('pool = "p"', old.hear())
        old.say("(leaseRequest = (gpus = 1, computePercent = 100))")
        answer = old.hear()
        self.assertIn("noCapacity", answer)
        self.assertNotIn("places", answer)
        self.end(first)

    def test_a_gang_has_devices_of_two_hosts(self):
        one, two = self.members(2)
        gang = self.job(one, "-n", "2", "--hosts", "2", "-c", "100%")
        self.assertEqual(sorted(self.where(gang)), sorted([one.pool, two.pool]))
        self.end(gang)

    def test_gangs_that_want_each_others_hosts_come_one_after_the_other(self):
        one, two = self.members(2)
        gangs = [self.job(host, "-n", "2", "--hosts", "2", "-c", "100%", "--wait", "60s",
                          program=("sh", "-c", "echo $FARGPU_POOL; sleep 0.3")) for host in (one, two) * 3]
        for gang in gangs:
            self.assertEqual(gang.wait(seconds=60), 0, gang.err.text())

    def test_a_host_that_clients_do_not_reach_is_passed_over_and_named(self):
        nobody = f"127.0.0.1:{free_port()}"
        one, _ = self.member("h1"), self.member("h2", "--pool-address", nobody, devices=2)
        self.seen(one, 2)
        in_vain = (rf"the pool has placed this job at h2, but in vain: cannot connect to {nobody} \(Connection "
                   r"refused\); start its fargpud, open that port for this machine, or have its pool_address corrected")
        for options in (("-n", "2"), ("-n", "2", "--wait", "3s"), ("-n", "3", "--hosts", "2", "--wait", "2s")):
            begin = time.monotonic()
            done = fargpu("run", *options, "--", "true", pool=one.pool)
            self.assertEqual(done.code, 125, done.err)
            self.assertRegex(done.err, f"^fargpu: {in_vain} \\(no other host of the pool could ever serve it\\)\n$")
            self.assertLess(time.monotonic() - begin, 5)
            wait_until(lambda: not [key for key in self.etcd.keys() if "/lease/" in key],
                       "the lease is given back", seconds=2)
        job = self.job(one, "-n", "1", "-c", "100%")
        self.assertEqual(self.where(job), [one.pool])
        for options in ((), ("--hosts", "2"), ("--wait", "3s")):
            done = fargpu("run", "-n", "1", "-c", "100%", *options, "--", "true", pool=one.pool)
            self.assertEqual(done.code, 75, done.err)
            self.assertRegex(done.err, f"try later.*; before that, {in_vain}\n$")
        waiting = self.job(one, "-n", "1", "-c", "100%", "--wait", "60s")
        wait_until(lambda: self.pool_of(one)["waiting"], "it waits")
        self.end(job)
        self.assertEqual(self.where(waiting), [one.pool])
        self.end(waiting)

    def test_a_job_that_waits_sees_a_host_start_again(self):
        for options in (("-n", "2"), ("-n", "3", "--hosts", "2")):
            one, two = self.member("h1"), self.member("h2", devices=2)
            self.seen(one, 2)
            two.process.kill()
            two.wait(output=False)
            job = self.job(one, *options, "--wait", "60s")
            time.sleep(2)
            again = self.member("h2", devices=2, port=two.port)
            self.assertIn(again.pool, self.where(job))
            self.end(job)
            for host in (one, again):
                host.terminate()
                host.wait(output=False)

    def test_doctor_names_a_host_that_clients_do_not_reach(self):
        nobody = f"127.0.0.1:{free_port()}"
        one, two = self.members(2)
        done = fargpu("doctor", pool=f"{one.pool},{two.pool}", seconds=60)
        self.assertEqual(done.code, 0, done.out)
        self.assertEqual(done.out.count("  ok    2 serving hosts of the pool answer this machine\n"), 1)
        self.member("h3", "--pool-address", nobody)
        self.seen(one, 3)
        done = fargpu("doctor", pool=one.pool, seconds=60)
        self.assertEqual(done.code, 1, done.out)
        self.assertIn(f"  FAIL  host 'h3' of the pool is not reached at {nobody}: cannot connect to {nobody} "
                      "(Connection refused)\n        start its fargpud, open that port for this machine, or have its "
                      "pool_address corrected\n", done.out)
        self.member("h4", "--pool-address", two.pool)
        self.seen(one, 4)
        done = fargpu("doctor", pool=one.pool, seconds=60)
        self.assertIn(f"  FAIL  host 'h4' of the pool is not reached at {two.pool}: another host answers at "
                      f"{two.pool}\n"
                      "        have its pool_address corrected\n", done.out)

    def test_an_address_that_leads_to_another_host(self):
        one = self.member("h1")
        two = self.member("h2", "--pool-address", one.pool, devices=2)
        self.seen(one, 2)
        done = fargpu("run", "-n", "2", "--", "true", pool=one.pool)
        self.assertEqual(done.code, 125, done.err)
        self.assertRegex(done.err, rf"the pool has placed this job at h2, but in vain: another host answers at "
                                   rf"{one.pool}; have its pool_address corrected")
        done = fargpu("drain", "--host", "h2", pool=one.pool)
        self.assertNotEqual(done.code, 0)
        self.assertEqual(done.err, f"fargpu: host 'h2' of the pool is not reached: another host answers at {one.pool}; "
                                   "have its pool_address corrected\n")
        self.assertEqual({host["state"] for host in self.pool_of(one)["hosts"]}, {"serving"})
        held = self.job(one, "-n", "1", "-c", "100%")
        self.assertEqual(self.where(held), [one.pool])
        three = self.member("h3", devices=2)
        self.seen(one, 3)
        other = self.job(one, "-n", "2")
        self.assertEqual(self.where(other), [three.pool])
        self.end(other)
        self.end(held)

    def test_an_address_where_no_tls_is_spoken(self):
        one = self.member("h1")
        port = free_port()
        self.member("h2", "--pool-address", f"tls://127.0.0.1:{port}", devices=2, port=port)
        self.seen(one, 2)
        in_vain = (rf"the pool has placed this job at h2, but in vain: 127.0.0.1:{port} is to be spoken to by TLS, but "
                   "nothing says how to know it; have its certificate or its pool_address corrected, .*FARGPU_CA")
        done = fargpu("run", "-n", "2", "--", "true", pool=one.pool)
        self.assertEqual(done.code, 125, done.err)
        self.assertRegex(done.err, in_vain)
        held = self.job(one, "-n", "1", "-c", "100%")
        self.assertEqual(self.where(held), [one.pool])
        waiting = self.job(one, "-n", "1", "-c", "100%", "--wait", "60s")
        wait_until(lambda: self.pool_of(one)["waiting"], "it waits")
        self.end(held)
        self.assertEqual(self.where(waiting), [one.pool])
        self.end(waiting)
        wait_until(lambda: not [key for key in self.etcd.keys() if "/lease/" in key], "all is given back", seconds=5)

    def test_a_client_that_names_hosts_that_are_none(self):
        one, = self.members(1)
        bad = self.connection(one)
        from rig import wire
        bad.say(f"(hello = ({wire.VERSION}, oldestProtocol = 3))")
        bad.hear()
        names = ", ".join(f'"{chr(255) * 16}{i}"' for i in range(64))
        bad.say(f"(leaseRequest = (gpus = 9, followsPlaces = true, unreached = [{names}]))")
        self.assertIn("denied", bad.hear())
        begin = time.monotonic()
        done = fargpu("run", "-n", "1", "--", "true", pool=one.pool)
        self.assertEqual(done.code, 0, done.err)
        self.assertLess(time.monotonic() - begin, 2)

    def test_a_host_that_one_client_did_not_reach_is_the_last_choice_for_others(self):
        class Silent:
            """Lets clients wait for its answer."""
            def __init__(self):
                self.socket = socket.create_server(("127.0.0.1", 0))
                self.address = "127.0.0.1:{}".format(self.socket.getsockname()[1])

            def callers(self):
                self.socket.settimeout(0)
                number = 0
                try:
                    while True:
                        self.socket.accept()[0].close()
                        number += 1
                except BlockingIOError:
                    return number
        silent = Silent()
        self.addCleanup(silent.socket.close)
        one, _ = self.member("h1"), self.member("h2", "--pool-address", silent.address, devices=2)
        three = self.member("h3")
        self.seen(one, 3)
        held = self.job(one, "-n", "1", "-c", "100%")  # one of the others has most room then
        self.where(held)
        silent.callers()
        done = fargpu("run", "-n", "2", "--", "true", pool=one.pool, seconds=30)
        self.assertEqual(done.code, 125, done.err)
        self.assertEqual(silent.callers(), 1)
        for _ in range(4):  # the least loaded would be the silent one, which has more devices
            job = fargpu("run", "-n", "1", "-m", "1MiB", "--", *SHOW, pool=one.pool)
            self.assertEqual(job.code, 0, job.err)
            self.assertIn(self.hosts_of(job.out.strip())[0], (one.pool, three.pool))
        self.assertEqual(silent.callers(), 0)
        self.end(held)
        done = fargpu("run", "-n", "2", "--", "true", pool=one.pool, seconds=30)  # and yet it is tried again
        self.assertEqual((done.code, silent.callers()), (125, 1), done.err)

    def test_a_queue_has_an_order(self):
        one, = self.members(1)
        first = self.job(one, "-n", "1", "-c", "100%")
        self.where(first)
        later = []
        for number in range(3):
            later.append(self.job(one, "-n", "1", "-c", "100%", "--wait", "60s",
                                  program=("sh", "-c", f"date +%s.%N; sleep 0.2")))
            wait_until(lambda: len(self.pool_of(one)["waiting"]) == number + 1, "it waits")
        self.end(first)
        for job in later:
            self.assertEqual(job.wait(seconds=60), 0, job.err.text())
        times = [float(job.out.text()) for job in later]
        self.assertEqual(times, sorted(times))

    def test_a_client_that_dies_while_it_waits_is_forgotten(self):
        one, = self.members(1)
        first = self.job(one, "-n", "1", "-c", "100%")
        self.where(first)
        waiting = self.job(one, "-n", "1", "-c", "100%", "--wait", "60s")
        wait_until(lambda: self.pool_of(one)["waiting"], "it waits")
        waiting.kill()
        wait_until(lambda: not self.pool_of(one)["waiting"], "the request has gone")
        self.end(first)


class Limits(RegistryTest):
    def test_a_tenant_has_so_much_of_all_hosts_together(self):
        one, two = self.members(2)
        done = fargpu("pool", "set", "default", "--leases", "1", "--host", one.pool)
        self.assertEqual(done.code, 0, done.err)
        self.assertRegex(done.out, r"default .* 0 of 1 ")
        first = self.job(one, "-n", "1", "-c", "50%")
        self.where(first)
        for host in (one, two):
            done = fargpu("run", "-n", "1", "-c", "50%", "--", "true", pool=host.pool)
            self.assertEqual(done.code, 75, done.err)
            self.assertIn("tenant 'default' has 1 lease in this pool, may have 1 lease", done.err)
        self.end(first)
        self.assertEqual(fargpu("run", "-n", "1", "-c", "50%", "--", "true", pool=two.pool).code, 0)
        self.assertEqual(fargpu("pool", "set", "default", "--forget", "--host", two.pool).code, 0)

        def limits():
            tenants = json.loads(fargpu("quota", "-o", "json", pool=one.pool).out)[0]["pool"]["tenants"]
            return [tenant["leases_limit"] for tenant in tenants if tenant["name"] == "default"]
        wait_until(lambda: limits() == [], "the limit is gone")

    def test_the_limit_of_one_host_is_named(self):
        with settings_file('[tenant.default]\nmemory = "600MiB"\n') as file:
            one = self.member("h1", config=file)
        self.seen(one, 1)
        job = self.job(one, "-n", "1", "-m", "400MiB")
        self.where(job)
        limit = "; by the settings of host h1, tenant 'default' may have 600.0 MiB there"
        for memory, code, has in (("400MiB", 75, ", and has 400.0 MiB;"), ("700MiB", 126, ";")):
            done = fargpu("run", "-n", "1", "-m", memory, "--", "true", pool=one.pool)
            self.assertEqual(done.code, code, done.err)
            self.assertIn(limit + has, done.err)
        self.end(job)

    def test_a_tenant_that_the_host_does_not_name_is_told_of_as_it_may_be_a_slip(self):
        with settings_file("[tenant.default]\nadministrator = true\n[tenant.lab]\n") as file:
            one = self.member("h1", config=file)
        self.seen(one, 1)
        done = fargpu("pool", "set", "lbb", "--leases", "3", pool=one.pool)
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(done.err, f"fargpu: warning: the settings of {one.pool} name no tenant 'lbb'; is it the right "
                                   "name? Limits are set all the same, and `fargpu pool set lbb --forget` drops "
                                   "them\n")
        self.assertRegex(done.out, r"lbb .* 0 of 3 ")
        for options in (("lab", "--leases", "3"), ("lbb", "--forget")):
            done = fargpu("pool", "set", *options, pool=one.pool)
            self.assertEqual((done.code, done.err), (0, ""))

    def test_a_drained_host_is_passed_over(self):
        one, two = self.members(2)
        self.assertEqual(fargpu("drain", "--host", one.pool).code, 0)
        for _ in range(2):
            job = self.job(one, "-n", "1")
            self.assertEqual(self.where(job), [two.pool])
            self.end(job)
        for verb, state in (("resume", "serving"), ("drain", "draining")) * 2:
            for host in (one, two):  # which know what was before
                self.pool_of(host)
            self.assertEqual(fargpu(verb, "--host", one.pool).code, 0)
            for host in (one, two):
                self.assertEqual([host["state"] for host in self.pool_of(host)["hosts"]], [state, "serving"])
        full = self.job(one, "-n", "1", "-c", "100%")
        self.where(full)
        done = fargpu("run", "-n", "1", "-c", "100%", "--", "true", pool=one.pool)
        self.assertEqual(done.code, 75)
        self.assertIn("have 0 GPUs free that would do, and h1 takes no new sessions now; try later", done.err)
        self.end(full)
        for verb, text in (("drain", "takes no new sessions"), ("resume", "takes new sessions")):  # by the pool's names
            done = fargpu(verb, "--host", "h2", pool=one.pool)
            self.assertEqual((done.code, done.err), (0, ""))
            self.assertIn(text, done.out)
        self.assertEqual([host["state"] for host in self.pool_of(one)["hosts"]], ["draining", "serving"])
        done = fargpu("drain", "--host", "h7", pool=one.pool)
        self.assertNotEqual(done.code, 0)
        self.assertIn("'h7'", done.err)

    def test_limits_that_are_none_are_refused_with_the_reason(self):
        one, = self.members(1)
        for options, reason in (
                (("--mem", "12"), "--mem is '12'; give an amount of memory with its unit, at least 1MiB, for example "
                                  "8GiB"),
                (("--leases", "0"), "--leases is 0; give a number of leases from 1 on, or leave it out for no limit"),
                (("--mem", "1GiB", "--forget"), "--forget drops all limits of the tenant; leave out --mem, --compute, "
                                                "--leases and --weight, or --forget"),
                ((), "say what the tenant may have of the pool: --mem, --compute, --leases or --weight; or --forget")):
            done = fargpu("pool", "set", "default", *options, pool=one.pool)
            self.assertEqual((done.code, done.err), (125, f"fargpu: {reason}\n"))
        self.assertEqual(fargpu("run", "-n", "1", "--", "true", pool=one.pool).code, 0)


class Seeing(RegistryTest):
    def test_what_waits_is_shown(self):
        one, = self.members(1)
        first = self.job(one, "-n", "1", "-c", "100%")
        self.where(first)
        waiting = self.job(one, "-n", "1", "-m", "64MiB", "-c", "10%", "--wait", "60s")
        wait_until(lambda: self.pool_of(one)["waiting"], "it waits")
        for verb in (("ls",), ("top", "--once", "-d", "0.1")):
            self.assertRegex(fargpu(*verb, pool=one.pool).out,
                             r"(?m)^  waiting since \d+ s: default, fargpu of \d+ on .*: 1 GPU, 64 MiB of each, 10%, "
                             r"asked at h1$")
            host, = json.loads(fargpu(*verb, "-o", "json", pool=one.pool).out)
            self.assertEqual([waiter["gpus"] for waiter in host["pool"]["waiting"]], [1])
        self.end(first)
        self.end(waiting)

    def test_a_pool_is_summed_up_once(self):
        one, two = self.members(2)
        two.process.kill()
        two.wait(output=False)
        text = fargpu("ls", pool=f"{one.pool},{two.pool}").out
        self.assertIn(f"{two.pool}  ! cannot connect", text)
        self.assertEqual(re.findall(r"(?m)^(?:the )?pool\b", text), ["pool"])

    def lines(self, host, *options):
        """Hosts of the pool in what `fargpu ls` shows."""
        text = fargpu("ls", *options, pool=host.pool).out.split("pool p:")[1]
        return re.findall(r"^  (h\d) ", text, re.M)

    def test_hosts_are_chosen_by_name_and_model(self):
        one, two = self.members(2)
        self.assertEqual(self.lines(one), ["h1", "h2"])
        self.assertEqual(self.lines(one, "--host", "*2"), ["h2"])
        self.assertEqual(self.lines(two, "--model", "fake"), ["h1", "h2"])
        self.assertEqual(self.lines(two, "--model", "H200"), [])
        pool = json.loads(fargpu("ls", "-o", "json", "--host", "h1", pool=one.pool).out)[0]["pool"]
        self.assertEqual([host["name"] for host in pool["hosts"]], ["h1"])

    def test_a_filter_hides_the_host_that_is_asked_and_says_so_if_it_hides_all(self):
        one, two = self.members(2)
        text = fargpu("ls", "--host", "h2", pool=one.pool).out
        self.assertNotIn("fargpud ", text)  # what is told of the host that is asked
        self.assertRegex(text, r"^pool p: 1 of 1 host serve, .*; 1 of 2 hosts shown\n")
        text = fargpu("ls", "--host", "h1", pool=one.pool).out
        self.assertIn(f"{one.pool}  fargpud ", text)
        self.assertIn("; 1 of 2 hosts shown\n", text)
        self.assertNotIn("shown", fargpu("ls", pool=one.pool).out)
        for verb in (("ls",), ("top", "--once", "-d", "0.1")):
            done = fargpu(*verb, "--host", "h9", "--model", "Fake", pool=one.pool)
            self.assertEqual(done.code, 0, done.err)
            self.assertRegex(done.out, r"^pool p: no host matches --host 'h9' and --model 'Fake'; it has 2 hosts, "
                                       r"placed by h\d\n$")
            member, = json.loads(fargpu(*verb, "-o", "json", "--host", "h2", pool=one.pool).out)
            self.assertEqual((member["host"], member["devices"], member["sessions"]), (one.pool, [], []))
            self.assertEqual([host["name"] for host in member["pool"]["hosts"]], ["h2"])
            self.assertEqual(member["pool"]["all_hosts"], 2)
            self.assertNotIn("policy", member)
        alone = self.broker()
        for verb in (("ls",), ("top", "--once", "-d", "0.1")):
            done = fargpu(*verb, "--host", "h9", pool=alone.pool)
            self.assertEqual((done.code, done.out), (0, "no host of FARGPU_POOL matches --host 'h9'\n"))
            self.assertEqual(json.loads(fargpu(*verb, "-o", "json", "--host", "h9", pool=alone.pool).out), [])
            self.assertIn("Fake GPU", fargpu(*verb, "--host", "127.*", pool=alone.pool).out)

    def test_doctor_asks_for_what_the_pool_wants_to_be_told(self):
        one, _ = self.members(2, devices=2)
        self.assertEqual(fargpu("pool", "set", "default", "--mem", "600MiB", "--compute", "50%", pool=one.pool).code, 0)
        done = fargpu("doctor", pool=one.pool, seconds=60)
        self.assertEqual(done.code, 0, done.out)
        self.assertIn("  note  programs of tenant 'default' have to say how much they want of the pool's memory, so "
                      "the session asks for 600.0 MiB (-m or FARGPU_MEM)\n", done.out)
        self.assertIn("compute, so the session asks for 10% (-c or FARGPU_COMPUTE)\n", done.out)
        self.assertIn("  ok    a session with 1 device", done.out)
        done = fargpu("doctor", pool=one.pool, env={"FARGPU_GPUS": 1, "FARGPU_MEM": "100MiB", "FARGPU_COMPUTE": "20%"},
                      seconds=60)
        self.assertEqual(done.code, 0, done.out)
        self.assertNotIn("have to say", done.out)
        done = fargpu("doctor", pool=one.pool, env={"FARGPU_MEM": "1000MiB"}, seconds=60)
        self.assertEqual(done.code, 1, done.out)
        self.assertIn("more than tenant 'default' may have", done.out)

    def test_doctor_and_a_drained_member(self):
        one, two = self.members(2)
        self.assertEqual(fargpu("drain", "--host", one.pool).code, 0)
        done = fargpu("doctor", pool=one.pool, seconds=60)
        self.assertEqual(done.code, 0, done.out)
        self.assertIn("  note  it is drained by its administrator, and sends programs to others of its pool, of which "
                      "1 serves now\n", done.out)
        self.assertIn("  ok    a session with 1 device", done.out)
        self.assertEqual(fargpu("drain", "--host", two.pool).code, 0)
        wait_until(lambda: [host["state"] for host in self.pool_of(one)["hosts"]] == ["draining"] * 2, "both drain")
        done = fargpu("doctor", pool=one.pool, seconds=60)
        self.assertEqual(done.code, 1, done.out)
        self.assertIn("  FAIL  it is drained by its administrator", done.out)

    def test_metrics_of_the_pool(self):
        hosts = [self.member(name, "--metrics-listen", "127.0.0.1:0") for name in ("h1", "h2")]
        self.seen(hosts[0], 2)
        job = self.job(hosts[0], "-n", "1", "-c", "100%")
        self.where(job)

        def series(host):
            url = f"http://127.0.0.1:{host.log('metrics')['port']}/metrics"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return {re.sub(r'Hostname="[^"]*",', "", name): float(value) for name, value in
                        re.findall(r"^fargpu_pool_(\S+) (\S+)$", answer.read().decode(), re.M)}
        of_all = {'hosts{pool="p"}': 2, 'devices{pool="p"}': 2, 'devices_free{pool="p"}': 1, 'leases{pool="p"}': 1,
                  'leases_waiting{pool="p"}': 0, 'registry_up{pool="p"}': 1}
        for host in hosts:
            wait_until(lambda host=host: of_all.items() <= series(host).items(), "the metrics tell of the lease")
        for name in ('placer{pool="p"}', 'placements_total{pool="p",result="granted"}'):
            self.assertEqual(sum(series(host).get(name, 0) for host in hosts), 1, name)  # by the one that places
        self.end(job)

    def test_each_lease_is_in_the_log_with_its_reason(self):
        one, two = self.members(2)
        job = self.job(one, "-n", "1", "-c", "100%", program=SHOW)
        self.assertEqual(job.wait(), 0, job.err.text())
        placer = one if self.pool_of(one)["placer"] == "h1" else two
        told = placer.log("pool places")
        self.assertEqual((told["tenant"], told["asked"]), ("default", "h1"))
        self.assertRegex(told["at"], r"^h[12]:1$")
        self.assertRegex(told["reason"], r"1 GPU at h[12], the least loaded that has room, with 0 sessions for 1 GPU")


class Checking(RegistryTest):
    """`fargpud --check` of a host that is to be a member."""

    def check(self, *options):
        return run([paths.FARGPUD, "--check", "--config", os.devnull, "--driver", paths.FAKE_DRIVER, "--listen",
                    "127.0.0.1:4711", "--image-folder", "", "--pool", "p", "--pool-host", "h1", *options])

    def test_it_says_which_pool_and_whether_the_registry_answers(self):
        done = self.check("--pool-registry", self.etcd.url)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn(f"\nthe host is 'h1' of pool 'p', by the registry {self.etcd.url}, which answers\n", done.out)
        done = self.check("--pool-registry", f"http://127.0.0.1:{free_port()}")
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("warning no registry ", done.err)
        self.assertIn(", which is of no use now\n", done.out)

    def test_a_certificate_and_the_key_of_another_one(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(fargpu("pki", "init", "--folder", folder).code, 0)
            for name in ("gpu1", "gpu2"):
                done = fargpu("pki", "issue", "--folder", folder, "--server", name, "--host", name)
                self.assertEqual(done.code, 0, done.err)
            files = ("--pool-registry", f"https://127.0.0.1:{free_port()}", "--pool-ca", f"{folder}/ca.crt",
                     "--pool-certificate", f"{folder}/gpu1.crt", "--pool-key")
            done = self.check(*files, f"{folder}/gpu2.key")
            self.assertEqual((done.code, done.out), (2, ""))
            self.assertIn(f"key '{folder}/gpu2.key' is not that of certificate '{folder}/gpu1.crt'", done.err)
            self.assertEqual(self.check(*files, f"{folder}/gpu1.key").code, 0)

    def test_an_address_without_its_port(self):
        for address, wanted in (("tls://gpu1.example.org", "tls://gpu1.example.org:4711"), ("gpu1", "gpu1:4711"),
                                ("gpu1:", "gpu1:4711"), ("[fd00::1]", "[fd00::1]:4711")):
            done = self.check("--pool-registry", self.etcd.url, "--pool-address", address)
            self.assertEqual((done.code, done.out), (2, ""))
            self.assertIn(f"pool_address is '{address}', which names no port; HOST:PORT is needed, such as {wanted}\n",
                          done.err)
        done = self.check("--pool-registry", self.etcd.url, "--pool-address", "tls://[fd00::1]:8470")
        self.assertEqual(done.code, 0, done.err)


class Failures(RegistryTest):
    @staticmethod
    def health(host):
        """What a probe sees: the status and the text."""
        try:
            url = f"http://127.0.0.1:{host.log('metrics')['port']}/healthz"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def test_a_dead_broker_is_none_of_the_pool_any_more(self):
        one, two = self.members(2)
        job = self.job(two, "-n", "1", "-c", "100%")
        other = self.job(two, "-n", "1", "-c", "100%")
        places = self.where(job) + self.where(other)
        survivor, on_it = (one, (job, other)[places.index(one.pool)])
        waiting = self.job(two, "-n", "1", "-c", "100%", "--wait", "60s")
        wait_until(lambda: self.pool_of(one)["waiting"], "it waits")
        two.process.kill()
        wait_until(lambda: len(self.pool_of(survivor)["hosts"]) == 1 and self.pool_of(survivor)["placer"],
                   "the dead host is gone, and somebody places", seconds=30)
        self.assertFalse([key for key in self.etcd.keys()
                          if ("/h2" in key and "/known/" not in key) or "/requests/" in key])
        self.assertNotEqual(waiting.wait(seconds=30), 0)
        self.assertTrue(on_it.running())
        self.end(on_it)
        done = fargpu("run", "-n", "1", "-c", "100%", "--wait", "10s", "--", *SHOW, pool=one.pool)
        self.assertEqual((done.code, self.hosts_of(done.out.strip())), (0, [one.pool]), done.err)

    def test_a_host_that_is_away_for_a_while_may_be_back(self):
        one, two, drained = self.member("h1"), self.member("h2", devices=2), self.member("h3", devices=3)
        self.seen(one, 3)
        self.assertEqual(fargpu("drain", "--host", drained.pool).code, 0)
        for host in (two, drained):
            host.process.kill()
            host.wait(output=False)
        wait_until(lambda: len(self.pool_of(one)["hosts"]) == 1 and self.pool_of(one)["placer"],
                   "the dead hosts are gone, and somebody places", seconds=30)
        away = ("fargpu: {}: 2 GPUs are asked for, which h2 could give: it was in the pool lately, and is away now; "
                "try later{}\n")
        done = fargpu("run", "-n", "2", "--", "true", pool=one.pool)
        self.assertEqual((done.code, done.err), (75, away.format(one.pool, " or wait with --wait")))
        begin = time.monotonic()
        done = fargpu("run", "-n", "2", "--wait", "17s", "--", "true", pool=one.pool, seconds=40)
        self.assertEqual((done.code, done.err), (75, away.format(one.pool, "")))
        self.assertGreater(time.monotonic() - begin, 16)
        done = fargpu("run", "-n", "3", "--", "true", pool=one.pool)  # it was drained before
        self.assertEqual(done.code, 126, done.err)
        waiting = self.job(one, "-n", "2", "--wait", "60s")
        wait_until(lambda: self.pool_of(one)["waiting"], "it waits")
        self.assertEqual([host["name"] for host in self.pool_of(one)["away"]], ["h2"])
        text = fargpu("ls", pool=one.pool).out
        self.assertRegex(text, r"pool p: 1 of 1 host serve, .*; 1 host away\n")
        self.assertRegex(text, rf"(?m)^  h2 +away .* 0 of 2 .*{two.port}$")
        self.assertIn(f"  note  host 'h2' of the pool, at tcp://{two.pool}, is away",
                      fargpu("doctor", pool=one.pool).out)
        again = self.member("h2", devices=2)
        self.assertEqual(self.where(waiting), [again.pool])
        self.end(waiting)
        wait_until(lambda: "away" not in fargpu("ls", pool=one.pool).out, "it is back")
        again.terminate()
        again.wait(output=False)
        done = fargpu("run", "-n", "2", "--", "true", pool=one.pool)  # it has left in good order
        self.assertEqual(done.code, 126, done.err)

    def test_a_broker_that_stops_takes_back_what_waits_at_it(self):
        with tempfile.TemporaryDirectory() as folder:
            for options in ((), ("--runtime-folder", str(Path(folder, "sessions")))):
                one, two = self.member("h1", *options), self.member("h2")
                self.seen(two, 2)
                held = [self.job(two, "-n", "1", "-c", "100%") for _ in range(2)]
                for job in held:
                    self.where(job)
                waiting = self.job(one, "-n", "1", "-c", "100%", "--wait", "60s")
                wait_until(lambda: self.pool_of(two)["waiting"], "it waits")
                one.terminate()
                one.wait(output=False)
                self.assertFalse([key for key in self.etcd.keys() if "/requests/" in key], options)
                if not options:  # nobody takes over what it had
                    self.assertFalse([key for key in self.etcd.keys() if "/at/h1/" in key])
                    wait_until(lambda: self.pool_of(two)["placer"] == "h2", "the other one places", seconds=3)
                self.assertEqual(waiting.wait(), 75)
                for job in held:
                    job.kill()
                    job.wait()
                two.terminate()
                two.wait(output=False)

    def test_a_broker_that_takes_over_enters_its_leases_again(self):
        with tempfile.TemporaryDirectory() as folder:
            runtime = ("--runtime-folder", str(Path(folder, "sessions")))
            one = self.member("h1", *runtime)
            self.seen(one, 1)
            client = self.client(one, "init", "context", env={"FARGPU_GPUS": 1, "FARGPU_COMPUTE": "60%"})
            wait_until(lambda: self.pool_of(one)["hosts"][0]["leases"] == 1, "one lease")
            worker = self.worker_of(one, client)
            one.process.kill()
            one.wait(output=False)
            again = self.member("h1", *runtime, port=one.port)
            self.assertEqual(again.log("session taken over")["worker"], str(worker))
            self.seen(again, 1)
            wait_until(lambda: self.pool_of(again)["hosts"][0]["leases"] == 1, "its lease is counted, once")
            done = fargpu("run", "-n", "1", "-c", "60%", "--", "true", pool=again.pool)
            self.assertEqual(done.code, 75, done.err)
            self.assertEqual(client.must("sync"), "SUCCESS")
            self.assertEqual(client.finish(), 0)
            wait_until(lambda: not any("/lease/" in key for key in self.etcd.keys()), "no lease is left")

    def test_another_host_places_when_the_placer_has_gone(self):
        hosts = dict(zip(("h1", "h2", "h3"), self.members(3)))
        placer = self.pool_of(hosts["h1"])["placer"]
        hosts[placer].process.kill()
        rest = [host for name, host in hosts.items() if name != placer]
        wait_until(lambda: self.pool_of(rest[0])["placer"] not in ("", placer), "another placer", seconds=30)
        done = fargpu("run", "-n", "1", "-c", "100%", "--wait", "20s", "--", "true", pool=rest[0].pool, seconds=40)
        self.assertEqual(done.code, 0, done.err)

    def test_two_brokers_of_one_name(self):
        one = self.member("h1")
        second = self.member("h1", joined=False)
        self.assertIn("another host is a member under the name 'h1'", second.log("pool out of reach")["reason"])
        self.assertEqual(len(self.pool_of(one)["hosts"]), 1)
        done = fargpu("run", "--", "true", pool=second.pool, seconds=60)
        self.assertEqual(done.code, 75, done.err)
        self.assertIn("this host is not in touch with the registry of its pool 'p', and gives no new leases until it "
                      "is: another host is a member under the name 'h1'", done.err)
        checked = run([paths.FARGPUD, "--check", "--config", os.devnull, "--driver", paths.FAKE_DRIVER, "--listen",
                       "127.0.0.1:4711", "--image-folder", "", "--pool", "p", "--pool-host", "h1", "--pool-registry",
                       self.etcd.url])
        self.assertRegex(checked.out, rf"where another host is a member under that name, at \S+{one.port}: give this "
                                      r"one another name by pool_host\n$")
        done = fargpu("doctor", pool=second.pool, seconds=60)
        self.assertRegex(done.out, r"  FAIL  it is 'h1' of pool 'p', but no member of it: another host is a member "
                                   rf"under the name 'h1', at \S+{one.port}; give this one another name by pool_host\n"
                                   rf"        give {second.pool} or that host another name by pool_host, and restart "
                                   r"its fargpud\n")
        one.terminate()
        one.wait()
        second.log("joined pool", seconds=30)

    def test_without_etcd_sessions_go_on_and_new_ones_are_as_the_settings_say(self):
        watched = ("--metrics-listen", "127.0.0.1:0")
        strict, lax = self.member("h1", *watched), self.member("h2", "--pool-outage", "local", *watched)
        self.assertEqual([self.health(host) for host in (strict, lax)], [(200, "ok\n")] * 2)
        self.seen(strict, 2)
        client = self.client(lax, "init", "context", "alloc a 1000", "write a 17")
        self.etcd.kill()
        for host in (strict, lax):
            host.log("pool out of reach", seconds=40)
        self.assert_lives(client)
        code, text = self.health(strict)
        self.assertEqual(code, 503)
        self.assertRegex(text, r"^this host is not in touch with the registry of its pool 'p', and gives no new leases "
                               r"until it is: .+\n$")
        told = fargpu("ls", pool=strict.pool).out
        self.assertRegex(told, r"pool p: 2 of 2 hosts serve(.*\n)+  ! the registry is of no use to the host that was "
                               r"asked, and this is what was so \d+ s ago: .*\n")
        self.assertEqual(self.health(lax), (200, "ok\n"))
        done = fargpu("run", "-n", "1", "--", "true", pool=strict.pool, seconds=30)
        self.assertEqual(done.code, 75, done.err)
        self.assertIn("not in touch with the registry of its pool 'p'", done.err)
        for options in (("-n", "2"), ("-n", "2", "--hosts", "2")):
            done = fargpu("run", *options, "--", "true", pool=lax.pool, seconds=30)
            self.assertEqual(done.code, 75, done.err)
            self.assertRegex(done.err, r"; the registry of pool 'p' is away, so only this host can serve now \(.+\): "
                                       r"ask for no more than it has, or try later\n$")
        local = self.job(lax, "-n", "1")
        self.assertEqual(self.where(local), [lax.pool])
        doctor = fargpu("doctor", pool=lax.pool, seconds=60)
        self.assertIn("whose registry is of no use now", doctor.out)
        self.etcd.start()
        for host in (strict, lax):
            host.log("joined pool", start=host.place() and 0, seconds=40)
        self.seen(strict, 2)
        wait_until(lambda: sum(host["leases"] for host in self.pool_of(strict)["hosts"]) == 2,
                   "both leases are counted again", seconds=30)
        self.assertEqual(self.health(strict), (200, "ok\n"))
        self.end(local)
        self.assert_lives(client)
        self.assertEqual(client.finish(), 0)

    def test_an_etcd_that_stands_still(self):
        one, = self.members(1)
        client = self.client(one, "init", "context", "alloc a 1000", "write a 17")
        self.etcd.process.signal(signal.SIGSTOP)
        one.log("pool out of reach", seconds=60)
        self.assert_lives(client)
        self.etcd.process.signal(signal.SIGCONT)
        place = one.place()
        one.log("joined pool", start=place - 1, seconds=60)
        self.seen(one, 1)
        self.assertEqual(client.finish(), 0)

    def test_a_member_that_is_cut_off_from_the_registry_sends_clients_to_another(self):
        way = Proxy(SimpleNamespace(port=self.etcd.client))
        self.addCleanup(way.close)
        cut = self.broker("--pool", "p", "--pool-registry", f"http://127.0.0.1:{way.port}", "--pool-host", "h1",
                          env={"FARGPU_FAKE_DEVICES": 1})
        cut.log("joined pool")
        other = self.member("h2")
        self.seen(other, 2)
        way.refuse()
        way.cut()
        cut.log("pool out of reach", seconds=40)
        for command in (["run", "-n", "1", "--", *SHOW], ["run", "-n", "1", "--hosts", "2", "--", *SHOW],
                        ["run", "-n", "2", "--hosts", "2", "--", *SHOW]):
            done = fargpu(*command, pool=f"{cut.pool},{other.pool}", seconds=60)
            if command[2] == "2":  # it has one GPU, and the other host is none of the pool any more
                self.assertNotEqual(done.code, 0)
            else:
                self.assertEqual((done.code, self.hosts_of(done.out.strip())), (0, [other.pool]), done.err)
        self.assertIn("  ! ", fargpu("ls", pool=cut.pool).out)
        self.assertNotIn("  ! ", fargpu("ls", pool=f"{cut.pool},{other.pool}").out)  # one knows better
        self.assertRegex(fargpu("quota", "--pool", cut.pool).out, r"pool p, .*\n  ! the registry .* \d+ s ago: ")
        begin = time.monotonic()
        done = fargpu("pool", "set", "default", "--leases", "1", "--host", cut.pool)
        self.assertNotEqual(done.code, 0)
        self.assertIn("this host is not in touch with the registry of pool 'p'", done.err)
        self.assertLess(time.monotonic() - begin, 3)


class ThreeMembersOfEtcd(RegistryTest):
    def setUp(self):
        self.three = Etcd.three()
        for member in self.three:
            self.addCleanup(member.close)
        self.etcd = SimpleNamespace(url=",".join(member.url for member in self.three))

    def host_by_proxies(self):
        ways = [Proxy(SimpleNamespace(port=member.client)) for member in self.three]
        for way in ways:
            self.addCleanup(way.close)
        host = self.broker("--pool", "p", "--pool-registry", ",".join(f"http://{way.pool}" for way in ways),
                           "--pool-host", "h1", env={"FARGPU_FAKE_DEVICES": 1})
        host.log("joined pool")
        return host, ways

    @staticmethod
    def silence(ways):
        """Of the member that the host uses."""
        used = max(ways, key=lambda way: way.moved)
        used.mute()
        used.refuse()
        return used

    def runs(self, host):
        """A job that waits for no room has a lease, though it may take a few seconds."""
        done = fargpu("run", "-n", "1", "--", "true", pool=host.pool, seconds=30)
        self.assertEqual(done.code, 0, done.err)

    def test_one_falls_silent(self):
        host, ways = self.host_by_proxies()
        other = self.member("h2")
        self.seen(other, 2)
        used = self.silence(ways)
        self.runs(host)
        self.assertIn(f"etcd at {used.pool}: no answer in time", host.log("pool out of reach")["reason"])

    def test_its_leader_dies(self):
        hosts = self.members(2)
        leader, = [member for member in self.three if member.leads()]
        leader.kill()
        for host in hosts:
            self.runs(host)

    def test_limits_are_set_while_one_is_silent(self):
        host, ways = self.host_by_proxies()
        self.seen(host, 1)
        self.silence(ways)
        done = fargpu("pool", "set", "default", "--leases", "3", pool=host.pool)
        self.assertEqual(done.code, 0, done.err)
        self.assertRegex(done.out, r"default .* of 3 ")


if __name__ == "__main__":
    unittest.main()
