"""Contents of memory that a host has kept: a program that starts again does not send them again, and nobody learns from
them what another tenant has sent."""

import json
import mmap
import os
import random
import re
import subprocess
import tempfile
import time
import unittest
import urllib.request
import zlib
from pathlib import Path

from rig import SystemTest, fargpu, wait_gone, wait_until
from rig.broker import settings_file
from rig.small_disk import SmallDisk, possible

MIB = 1 << 20
BYTES = 24 * MIB
LANES = {"FARGPU_TRANSPORT": "tcp", "FARGPU_LANES": "2", "FARGPU_COMPRESS": "off", "FARGPU_LOG": "stats"}


class Loads(SystemTest):
    """Programs that copy to the device what a host may have kept."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def host(self, *options, **more):
        folder = () if "--content-folder" in options else ("--content-folder", self.folder / "contents")
        return self.broker(*folder, *options, **more)

    def begin(self, host, seed=1, **env):
        return self.client(host, "init", "context", f"alloc a {BYTES}", f"scatter a {seed}",
                           env={**LANES, "FARGPU_CONTENT_CACHE": "on", **env})

    def end(self, host, client):
        """What the program sent, once what it has on the device is right, and its worker has kept what it keeps."""
        self.assert_lives(client)
        worker = int(host.log("session started", pid=client.pid)["worker"])
        self.assertEqual(client.finish(), 0)
        wait_gone(worker)
        return int(re.search(r"bytes sent (\d+)", client.errors())[1])


class Contents(Loads):
    def load(self, host, seed=1, **env):
        return self.end(host, self.begin(host, seed, **env))

    def kept(self, host, *options, env=None):
        done = fargpu("cache", "-o", "json", *options, pool=host.pool, env=env)
        self.assertEqual(done.code, 0, done.err)
        return json.loads(done.out)

    def test_a_second_program_sends_next_to_nothing(self):
        host = self.host()
        self.assertGreater(self.load(host), BYTES)
        again = self.begin(host)
        self.assertLess(self.end(host, again), BYTES / 50)
        known = re.search(r"known contents: (\d+) of (\d+) blocks that were named, (\d+) bytes not sent; .* s "
                          "of hashing", again.errors())
        self.assertEqual(known.groups(), ("24", "24", str(BYTES)))
        # With auto nothing is named before the line has shown how slow it is, and without a word not by the loopback.
        for mode in "off", "auto", "":
            self.assertGreater(self.load(host, FARGPU_CONTENT_CACHE=mode), BYTES, mode)

    def test_programs_at_the_same_time(self):
        host = self.host()
        clients = [self.begin(host, seed) for seed in (1, 2, 1)]
        for client in clients:
            self.end(host, client)
        for seed in 1, 2:
            self.assertLess(self.load(host, seed), BYTES / 50)

    def test_a_host_that_starts_again_has_them(self):
        host = self.host()
        self.load(host)
        host.close()
        host = self.host()
        self.assertLess(self.load(host), BYTES / 50)
        self.assertEqual(self.kept(host)["blocks"], 24)

    def test_tenants_learn_nothing_of_each_other(self):
        tokens, token = self.folder / "tokens", {}
        for tenant in ("one", "other"):
            done = fargpu("token", "create", "--file", tokens, "--name", tenant, "--tenant", tenant, "--ttl", "1h")
            self.assertEqual(done.code, 0, done.err)
            token[tenant] = {"FARGPU_TOKEN": done.out.strip()}
        with settings_file("[tenant.one]\n[tenant.other]\n") as settings:
            host = self.host("--token-file", tokens, config=settings)
        self.load(host, **token["one"])
        self.assertEqual(self.kept(host, env=token["other"])["bytes"], 0)
        other = self.begin(host, **token["other"])
        self.assertGreater(self.end(host, other), BYTES)
        self.assertIn("known contents: 0 of", other.errors())
        for env in token.values():
            self.assertLess(self.load(host, **env), BYTES / 50)
        # Each looks after its own.
        for options in ([], ["--clear"]):
            done = fargpu("cache", "--tenant", "one", *options, pool=host.pool, env=token["other"])
            self.assertEqual(done.code, 126)
            self.assertIn("only administrators", done.err)
        self.kept(host, "--clear", env=token["other"])
        self.assertLess(self.load(host, **token["one"]), BYTES / 50)
        self.assertGreater(self.load(host, **token["other"]), BYTES)

    def test_the_command_shows_and_clears_them(self):
        host = self.host("--content-bytes-max", "1GiB", "--metrics-listen", "127.0.0.1:0")
        self.load(host)
        told = self.kept(host)
        self.assertEqual((told["tenant"], told["blocks"], told["bytes"], told["bytes_max"], told["known_bytes"]),
                         ("default", 24, BYTES, 1 << 30, 0))
        again = self.begin(host)
        wait_until(lambda: self.not_sent(host) == [BYTES], "the host to hear of what a session does not send")
        self.assertRegex(fargpu("top", "--once", "-d", "0.1", pool=host.pool).out, r" not sent .*\n.* 24 MiB ")
        self.end(host, again)
        wait_until(lambda: self.kept(host)["known_bytes"] == BYTES, "the host to hear of known contents")
        text = fargpu("cache", pool=host.pool).out
        self.assertIn("keeps 24 MiB of tenant default in 24 blocks, at most 1.0 GiB", text)
        self.assertRegex(text, r"since fargpud began: 24 MiB need not travel, \d+ MiB were added")
        with urllib.request.urlopen(f"http://127.0.0.1:{host.log('metrics')['port']}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        for name, value in ("bytes", BYTES), ("known_bytes_total", BYTES):
            self.assertRegex(metrics, rf'fargpu_tenant_contents_{name}{{.*tenant="default"}} {value}\n')
        self.assertIn("fargpu_tenant_contents_kept_bytes_total{", metrics)
        place = host.place()
        self.assertIn("now it keeps nothing of them", fargpu("cache", "--clear", pool=host.pool).out)
        self.assertEqual(host.log("contents cleared", place)["bytes"], str(BYTES))
        self.assertEqual(self.kept(host)["bytes"], 0)
        self.assertGreater(self.load(host), BYTES)
        wait_until(lambda: [path.name for path in (self.folder / "contents").iterdir()] == ["default"],
                   "what was cleared to be removed")

    def not_sent(self, host):
        """By the sessions that there are."""
        told = json.loads(fargpu("top", "--once", "-d", "0.1", "-o", "json", pool=host.pool).out)
        return [session["known_bytes"] for session in told[0]["sessions"]]

    def test_a_host_that_keeps_none_says_so(self):
        for options in (["--content-bytes-max", "0"], ["--content-folder", ""]):
            host = self.host(*options)
            self.load(host)
            self.assertGreater(self.load(host), BYTES)
            self.assertIn("keeps no contents", fargpu("cache", pool=host.pool).out)

    def test_they_lie_below_the_image_folder_where_no_other_is_named(self):
        host = self.broker("--image-folder", self.folder / "images")
        self.load(host)
        self.assertTrue((self.folder / "images" / "default" / "contents").is_dir())

    @unittest.skipUnless(possible(), "this machine lets nobody mount a tmpfs")
    def test_a_full_disk_keeps_what_it_can(self):
        disk = SmallDisk(self.folder, "8m")
        self.addCleanup(disk.close)
        host = self.host(wrapper=disk.enter)
        for _ in range(2):
            self.load(host)
        self.assertLessEqual(self.kept(host)["bytes"], 8 * MIB)
        disk.fill()
        self.load(host)

    def test_a_wrong_value_is_refused(self):
        client = self.client(self.host(), env={"FARGPU_CONTENT_CACHE": "maybe"})
        self.assertEqual(client.ask("init"), "NO_DEVICE")
        client.says("FARGPU_CONTENT_CACHE is 'maybe'; use auto, on or off")


class Files(Loads):
    """Files that programs map, of which the names are remembered."""

    SIZE = 5 * MIB
    MAPPED = "write_mapped a"

    def file(self, name):
        path = self.folder / name
        path.write_bytes(random.Random(name).randbytes(self.SIZE))
        return path

    def map(self, host, path, *more):
        return self.client(host, "init", "context", f"alloc a {self.SIZE}", f"map a {path}", *more,
                           env={**LANES, "FARGPU_CONTENT_CACHE": "on"})

    def load(self, host, path, *more):
        """Loads it, checks that what arrived is what the program has, and this what the file has. The blocks of which
        the name was remembered, and those that were hashed."""
        client = self.map(host, path, *more or [self.MAPPED])
        self.end(host, client)
        told = re.search(r"known contents: (\d+) of (\d+) blocks .*; (.*) s of hashing, names of (\d+) blocks",
                         client.errors())
        return (int(told[4]), float(told[3])) if told else (0, 0)

    def remembers(self, host, path):
        """Loads it until all of its names are remembered; false where that cannot be."""
        blocks = self.SIZE // MIB
        if not self.can_be_known(path):
            self.assertEqual([self.load(host, path)[0] for _ in range(3)], [0, 0, 0])
            return False
        wait_until(lambda: self.load(host, path)[0] >= blocks, f"{path.name} to be remembered")
        return True

    def can_be_known(self, path):
        kind = subprocess.run(["stat", "-f", "-c", "%t", path], capture_output=True, text=True, check=True).stdout
        return kind.strip() in ("ef53", "58465342") and Path("/dev/shm").is_dir()

    @staticmethod
    def flip(path, at):
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 255]))

    def test_a_second_program_hashes_nothing_of_it(self):
        host = self.host()
        path = self.file("weights")
        time.sleep(2.1)
        if not self.remembers(host, path):
            self.skipTest(f"the file system of {path} is none whose files are known: nothing was remembered")
        # On a machine with much to do a name may come too late.
        wait_until(lambda: self.load(host, path) == (self.SIZE // MIB, 0), "a program that hashes nothing")
        # The name of what the host does not know any more is of no use, and the bytes travel.
        fargpu("cache", "--clear", pool=host.pool)
        client = self.map(host, path, self.MAPPED)
        self.assertGreater(self.end(host, client), self.SIZE)

    def test_a_file_that_changes_is_what_it_is_now(self):
        host = self.host()
        at, times = 3 * MIB + 17, {}

        def in_place(path):
            self.flip(path, at)

        def in_place_with_its_time_set_back(path):
            self.flip(path, at)
            os.utime(path, ns=times[path])

        def shorter_and_longer(path):
            os.truncate(path, at)
            os.truncate(path, self.SIZE)

        def another_in_its_place(path):
            other = path.with_suffix(".new")
            other.write_bytes(random.Random("other").randbytes(self.SIZE))
            os.utime(other, ns=times[path])
            other.rename(path)

        def by_a_mapping(path):
            with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                memory[at] ^= 255

        changes = in_place, in_place_with_its_time_set_back, shorter_and_longer, another_in_its_place, by_a_mapping
        paths = {change: self.file(change.__name__) for change in changes}
        time.sleep(2.1)
        for change, path in paths.items():
            with self.subTest(change.__name__):
                known = self.remembers(host, path)
                status = path.stat()
                times[path] = status.st_atime_ns, status.st_mtime_ns
                change(path)
                self.assertLess(self.load_now(host, path), self.SIZE // MIB)
                if known:
                    self.assertTrue(self.remembers(host, path))

    def load_now(self, host, path):
        """As load, with the device's bytes compared with the file's, which another process has read."""
        client = self.map(host, path, self.MAPPED)
        digest = client.ask("digest a")
        self.assertEqual(digest, f"SUCCESS {zlib.crc32(path.read_bytes())}")
        self.end(host, client)
        told = re.search(r"names of (\d+) blocks", client.errors())
        return int(told[1]) if told else 0

    def test_a_file_that_somebody_may_be_writing(self):
        host = self.host()
        path = self.file("weights")
        time.sleep(2.1)
        known = self.remembers(host, path)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            file.close()
            # The first write marks the file, and later ones need not.
            for byte in range(4):
                memory[byte] ^= 255
                self.assertEqual(self.load_now(host, path), 0)
            time.sleep(2.1)
            self.assertEqual(self.load_now(host, path), 0)
            memory[5] ^= 255
        self.assertEqual(self.load_now(host, path), 0)
        if known:
            time.sleep(2.1)
            self.remembers(host, path)
            wait_until(lambda: self.load_now(host, path) == self.SIZE // MIB, "all of it to be remembered")

    def test_what_the_program_writes_in_its_own_mapping(self):
        host = self.host()
        path = self.file("weights")
        time.sleep(2.1)
        blocks = self.SIZE // MIB - 1 if self.remembers(host, path) else 0
        for more in ([f"poke_mapped a {MIB + 5}", self.MAPPED],
                     [f"poke_mapped a {MIB + 5}", f"poke_mapped a {MIB + 5}", self.MAPPED]):
            self.assertEqual(self.load(host, path, *more)[0], blocks)
        client = self.map(host, path, self.MAPPED, f"poke_mapped a {MIB + 5}", self.MAPPED)
        self.end(host, client)

    def test_it_is_off_where_the_cache_is(self):
        host = self.host()
        path = self.file("weights")
        time.sleep(2.1)
        for mode in "off", "on":
            client = self.client(host, "init", "context", f"alloc a {self.SIZE}", f"map a {path}", self.MAPPED,
                                 env={**LANES, "FARGPU_CONTENT_CACHE": mode})
            if mode == "off":
                time.sleep(0.5)
            self.end(host, client)
            self.assertNotRegex(client.errors(), r"names of [1-9]")


if __name__ == "__main__":
    unittest.main()
