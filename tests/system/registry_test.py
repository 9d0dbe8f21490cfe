"""A pool of hosts by a registry: real etcd, and brokers that place leases by it."""

import json
import os
import re
import signal
import socket
import tempfile
import time
import unittest
import urllib.request

from rig import fargpu, paths, wait_until, wire
from rig.broker import settings_file
from rig.process import run
from rig.ports import free_port
from rig.registry import SHOW, RegistryTest


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
        self.member("h2", "--pool-address", one.pool, devices=2)
        self.seen(one, 2)
        done = fargpu("run", "-n", "2", "--", "true", pool=one.pool)
        self.assertEqual(done.code, 125, done.err)
        self.assertRegex(done.err, r"the pool has placed this job at h2, but in vain: another host answers at "
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
                   "nothing says how to know it; have its certificate or its pool_address corrected .*FARGPU_CA")
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
        bad.say(f"(hello = ({wire.VERSION}, oldestProtocol = 3))")
        bad.hear()
        names = ", ".join(f'"{chr(255) * 16}{i}"' for i in range(64))
        bad.say(f"(leaseRequest = (gpus = 9, followsPlaces = true, unreached = [{names}]))")
        self.assertIn("denied", bad.hear())
        begin = time.monotonic()
        done = fargpu("run", "-n", "1", "--", "true", pool=one.pool)
        self.assertEqual(done.code, 0, done.err)
        self.assertLess(time.monotonic() - begin, 8)  # and not the ten after which no placer has answered

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
                                  program=("sh", "-c", "date +%s.%N; sleep 0.2")))
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

    def smi(self, pool, *options, code=0):
        done = fargpu("smi", "-o", "json", *options, pool=pool)
        self.assertEqual(done.code, code, done.err)
        return json.loads(done.out)

    def test_smi_shows_the_devices_of_all_hosts(self):
        one, two = self.members(2, devices=2)
        told = self.smi(one.pool)
        self.assertEqual([(device["host"], device["number"]) for device in told["devices"]],
                         [(one.pool, 0), (one.pool, 1), (two.pool, 0), (two.pool, 1)])
        self.assertEqual((told["sums"]["hosts"], told["sums"]["devices"]), (2, 4))
        for key in ("memory_bytes", "used_bytes"):
            self.assertEqual(told["sums"][key], sum(device[key] for device in told["devices"]))
        self.assertEqual([pool["name"] for pool in told["pools"]], ["p"])
        self.assertEqual(self.smi(f"{two.pool},{one.pool}")["sums"], told["sums"])  # each once
        text = fargpu("smi", pool=one.pool).out
        self.assertRegex(text, r"\| host h1 +serving \|\n")
        self.assertRegex(text, r"\| 2 hosts, 4 GPUs .* MiB / 4096 MiB .*\|\n\+-*\+\npool p: 2 of 2 hosts serve, ")
        self.assertEqual({len(line) for line in text.splitlines()[:-1]}, {80}, text)
        for options, hosts in ((("--host", "h2"), [two.pool] * 2), (("--model", "GPU 1"), None),
                               (("--host", "h9"), []), (("--model", "H200"), [])):
            told = self.smi(one.pool, *options)
            if hosts is None:
                self.assertEqual([device["number"] for device in told["devices"]], [1, 1])
            else:
                self.assertEqual([device["host"] for device in told["devices"]], hosts)
        self.assertRegex(fargpu("smi", "--host", "h9", pool=one.pool).out, r"^pool p: no host matches --host 'h9'; ")

    def test_smi_names_programs_of_all_hosts_by_tenant(self):
        one, two = self.members(2)
        jobs = [self.job(one, "-n", "1", "-c", "100%") for _ in range(2)]
        hosts = {self.where(job)[0] for job in jobs}
        self.assertEqual(hosts, {one.pool, two.pool})
        clients = [self.client(host, "init", "context", f"alloc a {32 << 20}", "write a 1") for host in (one, two)]
        told = wait_until(lambda: [told for told in [self.smi(two.pool)] if len(told["processes"]) == 2],
                          "both programs")[0]
        self.assertEqual({process["pid"] for process in told["processes"]}, {client.pid for client in clients})
        for process in told["processes"]:
            self.assertEqual(told["devices"][process["device"]]["host"], process["host"])
            self.assertEqual((process["tenant"], process["client"]), ("default", socket.gethostname()))
        self.assertEqual(self.smi(two.pool, "--tenant", "other")["processes"], [])
        for job in jobs:
            self.end(job)

    def test_smi_within_a_job_shows_what_the_job_has(self):
        one, _ = self.members(2, devices=2)
        done = fargpu("run", "-n", "1", "-m", "64MiB", "--", paths.FARGPU, "smi", "-o", "json", pool=one.pool)
        self.assertEqual(done.code, 0, done.err)
        told = json.loads(done.out)
        self.assertEqual([device["memory_bytes"] for device in told["devices"]], [64 << 20])
        self.assertEqual(told["sums"]["memory_bytes"], 64 << 20)

    def test_smi_and_a_member_that_is_silent_or_another_host(self):
        one, two = self.members(2)
        os.kill(two.process.pid, signal.SIGSTOP)
        try:
            told = self.smi(one.pool, code=125)
        finally:
            os.kill(two.process.pid, signal.SIGCONT)
        silent, = told["errors"]
        self.assertEqual(silent["host"], f"h2 at tcp://{two.pool}")
        self.assertEqual([device["host"] for device in told["devices"]], [one.pool])
        self.member("h3", "--pool-address", f"tcp://{one.pool}")
        self.seen(one, 3)
        wrong = self.smi(one.pool, "--host", "h3", code=125)["errors"]
        self.assertEqual(wrong, [{"host": f"h3 at tcp://{one.pool}",
                                  "error": f"another host answers at {one.pool}"}])

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


if __name__ == "__main__":
    unittest.main()
