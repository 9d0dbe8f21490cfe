"""A pool by a registry when brokers and members of etcd die, stand still, and are cut off."""

import os
import signal
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

from rig import fargpu, paths, wait_until
from rig.process import run
from rig.proxy import Proxy
from rig.registry import SHOW, Etcd, RegistryTest


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

    def test_clocks_that_are_apart(self):
        clock = {"LD_PRELOAD": "/usr/$LIB/faketime/libfaketime.so.1", "FAKETIME_DONT_FAKE_MONOTONIC": 1,
                 "DONT_FAKE_MONOTONIC": 1}
        hosts = [self.member(name, env={**clock, "FAKETIME": ahead})
                 for name, ahead in (("h1", "-3d"), ("h2", "+3d"))]
        self.seen(hosts[0], 2)
        self.assertGreater(hosts[1].status()["started"] - hosts[0].status()["started"], 5 * 86_400)
        jobs = [self.job(host, "-n", "1", "-c", "100%") for host in hosts]
        places = [self.where(job) for job in jobs]
        self.assertEqual({place for place, in places}, {host.pool for host in hosts})
        waiting = self.job(hosts[1], "-n", "1", "-c", "100%", "--wait", "30s")
        wait_until(lambda: self.pool_of(hosts[0])["waiting"], "it waits")
        time.sleep(12)  # longer than a member's lifetime
        self.assertTrue(all(job.running() for job in (*jobs, waiting)))
        self.assertEqual(len(self.pool_of(hosts[0])["hosts"]), 2)
        self.end(jobs[0])
        self.assertEqual(self.where(waiting), places[0])
        for job in (jobs[1], waiting):
            self.end(job)

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
