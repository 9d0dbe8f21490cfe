"""Pools of hosts by a registry: real etcd, and brokers that are members."""

import json
import os
import shutil
import tempfile
import time
import unittest

from . import paths
from .base import SystemTest
from .ports import free_port
from .process import Process, run, wait_until

ETCD = shutil.which("etcd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/bin")
# Where etcd waits for no disk, which others of this machine may keep busy for many seconds.
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
SHOW = ("sh", "-c", "echo $FARGPU_POOL")
HOLD = ("sh", "-c", "echo $FARGPU_POOL $FARGPU_SPLIT; read line")


class Etcd:
    """A member of an etcd on this machine, which is the only one if no other peers are named; it can be stopped and
    started again."""

    def __init__(self, *options, scheme="http", peers=None, place=0):
        self.folder = tempfile.TemporaryDirectory(dir=FAST)
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
    """Hosts of a pool, and jobs that ask for its GPUs."""

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
