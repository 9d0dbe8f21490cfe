"""Contents of memory that a host has kept: a program that starts again does not send them again, and nobody learns from
them what another tenant has sent."""

import json
import re
import tempfile
import unittest
import urllib.request
from pathlib import Path

from rig import SystemTest, fargpu, wait_gone, wait_until
from rig.broker import settings_file
from rig.small_disk import SmallDisk, possible

MIB = 1 << 20
BYTES = 24 * MIB
LANES = {"FARGPU_TRANSPORT": "tcp", "FARGPU_LANES": "2", "FARGPU_COMPRESS": "off", "FARGPU_LOG": "stats"}


class Contents(SystemTest):
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
        self.load(host)
        wait_until(lambda: self.kept(host)["known_bytes"] == BYTES, "the host to hear of known contents")
        text = fargpu("cache", pool=host.pool).out
        self.assertIn("keeps 24 MiB of tenant default in 24 blocks, at most 1.0 GiB", text)
        self.assertRegex(text, r"since fargpud began: 24 MiB need not travel, \d+ MiB were added")
        with urllib.request.urlopen(f"http://127.0.0.1:{host.log('metrics')['port']}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        for name in "bytes", "known_bytes_total":
            self.assertRegex(metrics,
                             rf'fargpu_tenant_contents_{name}{{.*tenant="default"}} (2.516\d*e\+07|25165824)\n')
        self.assertIn("fargpu_tenant_contents_kept_bytes_total{", metrics)
        place = host.place()
        self.assertIn("now it keeps nothing of them", fargpu("cache", "--clear", pool=host.pool).out)
        self.assertEqual(host.log("contents cleared", place)["bytes"], str(BYTES))
        self.assertEqual(self.kept(host)["bytes"], 0)
        self.assertGreater(self.load(host), BYTES)
        wait_until(lambda: [path.name for path in (self.folder / "contents").iterdir()] == ["default"],
                   "what was cleared to be removed")

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


if __name__ == "__main__":
    unittest.main()
