"""Several hosts: which one a job gets, and what a job does while all are full."""

import tempfile
import time
import unittest
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_until

SHOW = ("sh", "-c", "echo $FARGPU_POOL")


def die(host):
    """By itself, and its workers with it. If these were killed first, there would be room for a moment."""
    host.process.kill()
    host.process.wait(output=False)


class Pool(SystemTest):
    def hosts(self, number, *options):
        return [self.broker(*options) for _ in range(number)]

    def pool(self, hosts):
        return ",".join(host.pool for host in hosts)

    def job(self, hosts, *options):
        """A job that says which host it has got, and keeps it until it is told to go on."""
        return self.start([paths.FARGPU, "run", *options, "--", "sh", "-c", "echo $FARGPU_POOL; read line"],
                          env={"FARGPU_POOL": self.pool(hosts)})

    def host_of(self, job):
        return job.out.find(lambda line: line)[0]

    def waiting(self, host):
        return host.status()["waiting"]

    # --- choice ------------------------------------------------------------------------------------------------------

    def test_a_job_gets_the_host_with_the_fewest_sessions(self):
        hosts = self.hosts(3)
        for host, sessions in zip(hosts, (2, 0, 1)):
            for _ in range(sessions):
                self.client(host, "init")
        self.assertEqual(fargpu("run", "--", *SHOW, pool=self.pool(hosts)).out, hosts[1].pool + "\n")

    def test_of_equal_hosts_the_first_is_taken(self):
        hosts = self.hosts(3)
        self.assertEqual(fargpu("run", "--", *SHOW, pool=self.pool(hosts)).out, hosts[0].pool + "\n")

    def test_a_host_with_room_goes_before_one_with_fewer_sessions(self):
        small, large = self.broker(env={"FARGPU_FAKE_DEVICES": 1}), self.broker(env={"FARGPU_FAKE_DEVICES": 2})
        self.client(large, "init")
        done = fargpu("run", "-n", "2", "--", *SHOW, pool=self.pool([small, large]))
        self.assertEqual((done.code, done.out), (0, large.pool + "\n"), done.err)

    def test_sessions_count_by_device(self):
        small, large = self.broker(env={"FARGPU_FAKE_DEVICES": 1}), self.broker(env={"FARGPU_FAKE_DEVICES": 4})
        self.client(small, "init")
        for _ in range(3):
            self.client(large, "init")
        done = fargpu("run", "-n", "1", "--", *SHOW, pool=self.pool([small, large]))
        self.assertEqual((done.code, done.out), (0, large.pool + "\n"), done.err)

    def test_programs_without_a_job_come_to_one_host(self):
        hosts = self.hosts(2)
        for _ in range(3):
            self.client(self.pool(hosts), "init")
        self.assertEqual([len(host.sessions()) for host in hosts], [3, 0])

    def test_a_full_host_is_passed_over(self):
        hosts = self.hosts(2, "--sessions-max", "1")
        for _ in range(2):
            begin = time.monotonic()
            self.client(self.pool(hosts), "init", env={"FARGPU_WAIT": "1min"})
            self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual([len(host.sessions()) for host in hosts], [1, 1])

    # --- the queue ---------------------------------------------------------------------------------------------------

    def full_hosts(self, number):
        hosts = self.hosts(number, "--sessions-max", "1")
        return hosts, [self.client(host, "init") for host in hosts]

    def test_a_waiting_job_takes_the_first_host_that_has_room(self):
        for freed in range(3):
            with self.subTest(freed=freed):
                hosts, clients = self.full_hosts(3)
                job = self.job(hosts, "--wait", "1min")
                hosts[0].log("lease waits")
                self.assertEqual([len(self.waiting(host)) for host in hosts], [1, 0, 0])  # it stands in one queue
                clients[freed].finish()
                self.assertEqual(self.host_of(job), hosts[freed].pool)
                wait_until(lambda: not any(self.waiting(host) for host in hosts), "no request left behind")
                self.assertEqual([len(host.status()["leases"]) for host in hosts].count(0), 0)
                job.send_line("on")
                self.assertEqual(job.wait(), 0)

    def test_a_waiting_job_takes_it_by_tls_too(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder, "keys")
            keys.write_text(f"default:{'1b' * 32}\n", encoding="utf-8")
            keys.chmod(0o600)
            hosts = [self.broker("--sessions-max", "1", "--psk-file", keys, listen="tls://127.0.0.1:0")
                     for _ in range(2)]
            pools = [f"tls://{host.pool}" for host in hosts]
            env = {"FARGPU_PSK_FILE": keys}
            clients = [self.client(pool, "init", env=env) for pool in pools]
            job = self.start([paths.FARGPU, "run", "--wait", "1min", "--", *SHOW],
                             env={**env, "FARGPU_POOL": ",".join(pools)})
            hosts[0].log("lease waits")
            clients[1].finish()
            self.assertEqual(self.host_of(job), pools[1])
            self.assertEqual(job.wait(), 0)

    def test_a_waiting_program_takes_the_first_host_that_has_room(self):
        hosts, clients = self.full_hosts(2)
        late = self.client(self.pool(hosts), env={"FARGPU_WAIT": "1min"})
        late.begin("init")
        hosts[0].log("lease waits")
        clients[1].finish()
        self.assertEqual(late.answer(), "SUCCESS")
        wait_until(lambda: not self.waiting(hosts[0]), "no request left behind")

    def test_waiting_ends_with_its_time(self):
        hosts, _ = self.full_hosts(2)
        begin = time.monotonic()
        done = fargpu("run", "--wait", "2s", "--", "true", pool=self.pool(hosts))
        took = time.monotonic() - begin
        self.assertEqual(done.code, 75)
        for number, host in enumerate(hosts):
            self.assertIn(f"({number + 1}) {host.pool}: the only session of this host is taken", done.err)
        self.assertNotIn("--wait", done.err)
        self.assertTrue(1.9 < took < 30, took)

    def test_a_host_that_dies_while_a_job_stands_in_its_queue(self):
        hosts, clients = self.full_hosts(2)
        job = self.job(hosts, "--wait", "1min")
        hosts[0].log("lease waits")
        die(hosts[0])
        hosts[1].log("lease waits")
        clients[1].finish()
        self.assertEqual(self.host_of(job), hosts[1].pool)

    def test_a_watched_host_that_dies_does_not_disturb(self):
        hosts, clients = self.full_hosts(3)
        job = self.job(hosts, "--wait", "1min")
        hosts[0].log("lease waits")
        die(hosts[1])
        time.sleep(1.5)
        clients[2].finish()
        self.assertEqual(self.host_of(job), hosts[2].pool)

    def test_a_request_that_no_host_can_fulfil_does_not_wait(self):
        hosts = self.hosts(2)
        begin = time.monotonic()
        done = fargpu("run", "-n", "9", "--wait", "10min", "--", "true", pool=self.pool(hosts))
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(done.code, 126, done.err)


if __name__ == "__main__":
    unittest.main()
