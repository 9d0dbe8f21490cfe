"""What stands between tenants of one host: who they are by their users, whose turn it is, what is left in memory, and
what floods cost."""

import json
import os
import re
import signal
import socket
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

from rig import SystemTest, fargpu, paths, wait_until
from rig.broker import parse_event, settings_file
from rig.process import run
from rig.wire import VERSION, control, data_of, frame

MIB = 1 << 20
ME = os.getuid()
NOBODY = 65534
ANY_WAY = {"FARGPU_TRANSPORT": "auto"}  # else tests go by TCP


class Users(SystemTest):
    """A Unix socket says which user of the machine is at its other end."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.path = self.folder / "fargpud.socket"

    def host(self, tenants, *options):
        with settings_file(tenants) as file:
            return self.broker(*options, listen=f"127.0.0.1:0,unix:{self.path}", config=file)

    def pool(self):
        return f"unix:{self.path}"

    def test_a_user_is_the_tenant_that_lists_him(self):
        host = self.host(f'[tenant.mine]\nmemory = "64MiB"\nusers = [{ME}]\n[tenant.other]\n')
        client = self.client(self.pool(), "init", env=ANY_WAY)
        self.assertEqual(client.ask("total_bytes 0"), f"SUCCESS {64 * MIB}")
        self.assertEqual(host.log("session started", pid=client.pid)["tenant"], "mine")

    def as_somebody_else(self, *arguments):
        """`fargpu` by a user of no rights, who must find the build and the socket."""
        if ME != 0 or any(not folder.stat().st_mode & 0o001 for folder in paths.FARGPU.parents):
            self.skipTest("only root can be somebody else, who must find the build")
        self.folder.chmod(0o755)
        return run(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", paths.FARGPU, *arguments],
                   env={"FARGPU_POOL": self.pool(), **ANY_WAY})

    def test_one_that_nobody_lists_is_refused_by_name(self):
        host = self.host(f"[tenant.other]\nusers = [{ME + 1}]\n")
        # By the port nobody is anybody.
        self.assertEqual(self.client(host).ask("init"), "NOT_PERMITTED")
        host.log("client denied")
        place = host.place()
        done = self.as_somebody_else("run", "--", "true")
        self.assertEqual(done.code, 126)
        self.assertIn(f"user {NOBODY} of this machine is of no tenant here", done.err)
        self.assertIn("users", host.log("client denied", place)["reason"])

    def test_a_default_tenant_takes_the_others(self):
        host = self.host(f"[tenant.default]\n[tenant.other]\nusers = [{ME + 1}]\n")
        client = self.client(self.pool(), "init", env=ANY_WAY)
        self.assertEqual(host.log("session started", pid=client.pid)["tenant"], "default")

    def test_a_token_says_more_than_the_user(self):
        tokens = self.folder / "tokens"
        done = fargpu("token", "create", "--file", tokens, "--name", "a", "--tenant", "other", "--ttl", "1h")
        self.assertEqual(done.code, 0, done.err)
        host = self.host(f"[tenant.mine]\nusers = [{ME}]\n[tenant.other]\n", "--token-file", tokens)
        client = self.client(self.pool(), "init", env={**ANY_WAY, "FARGPU_TOKEN": done.out.strip()})
        self.assertEqual(host.log("session started", pid=client.pid)["tenant"], "other")
        wrong = self.client(self.pool(), env={**ANY_WAY, "FARGPU_TOKEN": "x" * 40})
        self.assertEqual(wrong.ask("init"), "NOT_PERMITTED")

    def test_administrators_change_the_policy_and_others_do_not(self):
        for said, code in (("true", 0), ("false", 126)):
            with self.subTest(administrator=said):
                host = self.host(f"[tenant.mine]\nusers = [{NOBODY}]\nadministrator = {said}\n")
                done = self.as_somebody_else("policy", "set", "fair", "--host", self.pool())
                self.assertEqual(done.code, code, done.err)
                if code:
                    self.assertIn("only administrators", done.err)
                    self.assertEqual(host.log("administration refused")["tenant"], "mine")
                else:
                    self.assertEqual(host.log("policy")["policy"], "fair")
                host.close()

    def test_administrators_see_everybodys_sessions_and_others_their_own(self):
        tokens = self.folder / "tokens"
        token = {}
        for tenant in ("lab", "class"):
            done = fargpu("token", "create", "--file", tokens, "--name", tenant, "--tenant", tenant, "--ttl", "1h")
            self.assertEqual(done.code, 0, done.err)
            token[tenant] = done.out.strip()
        host = self.host(f"[tenant.keeper]\nusers = [{ME}]\nadministrator = true\n[tenant.lab]\n[tenant.class]\n",
                         "--token-file", tokens)
        for tenant in token:
            self.client(self.pool(), "init", env={**ANY_WAY, "FARGPU_TOKEN": token[tenant]})

        def seen(env):
            done = fargpu("ls", "-o", "json", pool=self.pool(), env=env)
            self.assertEqual(done.code, 0, done.err)
            status = json.loads(done.out)[0]
            return [sorted(one["tenant"] for one in status[what])
                    for what in ("sessions", "leases")], status["sessions_taken"]
        self.assertEqual(seen({}), ([["class", "lab"]] * 2, 2))
        # How many there are everybody may know.
        self.assertEqual(seen({"FARGPU_TOKEN": token["lab"]}), ([["lab"]] * 2, 2))
        self.assertIn("and 1 of other tenants", fargpu("ls", pool=self.pool(), env={"FARGPU_TOKEN": token["lab"]}).out)
        self.assertRegex(fargpu("ls", pool=self.pool()).out, r"class .*\n.*lab |lab .*\n.*class ")


class Bounds(SystemTest):
    def test_memory_of_the_host_is_the_leases(self):
        with settings_file('[tenant.default]\nhost_memory = "8MiB"\n') as file:
            host = self.broker(config=file)
        job = {**ANY_WAY, "FARGPU_JOB": "5a" * 16}
        commands = ("init", "context", f"alloc a {5 * MIB}", "write a 5")
        one, other = (self.client(host, *commands, env=job) for _ in range(2))
        one.must("pin a")
        self.assertEqual(other.ask("pin a"), "OUT_OF_MEMORY")
        other.says("host_memory of the tenant")
        self.assert_lives(other)
        self.client(host, *commands, "pin a", env=ANY_WAY)  # a lease of its own
        self.assertEqual(one.finish(), 0)
        wait_until(lambda: other.ask("pin a") == "SUCCESS", "what the first had")

    def test_bandwidth_is_the_leases(self):
        rate, size = 8 * MIB, 8 * MIB
        with settings_file('[tenant.default]\nbandwidth = "8MiB"\n') as file:
            host = self.broker("--metrics-listen", "127.0.0.1:0", config=file)
            settings = Path(file)
            # Two processes of a job, by their one connection each and by bulk lanes.
            clients = [self.client(host, "init", "context", f"alloc a {size}",
                                   env={"FARGPU_JOB": "5b" * 16, "FARGPU_LANES": lanes, "FARGPU_COMPRESS": "off"})
                       for lanes in ("1", "3")]
            begin = time.monotonic()
            for client in clients:
                client.begin("write a 5")
            for client in clients:
                self.assertEqual(client.answer(), "SUCCESS")
            for client in clients:
                self.assertEqual(client.ask("check a 5"), "SUCCESS same")  # and back again
            # Both ways, of both; what was saved up is a tenth of a second's at most.
            self.assertGreater(time.monotonic() - begin, 4 * size / rate - 0.2)
            lease = host.status()["leases"][0]
            self.assertEqual((lease["sessions"], lease["bandwidth_bytes"]), (2, rate))
            self.assertGreaterEqual(lease["moved_bytes"], 4 * size)
            with urllib.request.urlopen(f"http://127.0.0.1:{host.log('metrics')['port']}/metrics",
                                        timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            moved = [float(line.split()[-1]) for line in lines if line.startswith("fargpu_session_network_bytes_total")]
            self.assertEqual(len(moved), 2)
            self.assertGreaterEqual(min(moved), 2 * size)
            # Read again, it holds for those that run.
            settings.write_text("[tenant.default]\n")
            host.process.signal(signal.SIGHUP)
            wait_until(lambda: host.status()["leases"][0]["bandwidth_bytes"] == 0, "no limit")
            self.assertEqual(clients[0].ask("write a 6"), "SUCCESS")

    def test_kernels_have_their_tenants_time(self):
        with settings_file("[tenant.default]\nkernel_seconds_max = 1\n") as file:
            host = self.broker("--kernel-seconds-max", "1000", config=file)
        bystander = self.client(host, "init", "context", "alloc a 4096", "write a 5")
        hung = self.client(host, "init", "context", "load", "alloc a 4096", "hang a")
        hung.begin("sync")
        self.assertIn("kernel_seconds_max", host.log("session ended", seconds=20)["reason"])
        self.assertEqual(hung.answer(), "DEVICE_UNAVAILABLE")
        self.assert_lives(bystander)

    def test_programs_of_a_tenant_share_devices_by_its_mps_daemon(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.mkfifo(Path(folder.name, "control"))  # by which a daemon is known
        with settings_file(f'[tenant.default]\nmps = "{folder.name}"\n') as file:
            host = self.broker(config=file)
        for share, percentage in ((None, None), ("40%", b"40"), ("100%", None)):
            client = self.client(host, "init", env={"FARGPU_COMPUTE": share} if share else {})
            worker = host.log("session started", pid=client.pid)["worker"]
            environment = dict(variable.split(b"=", 1)
                               for variable in Path(f"/proc/{worker}/environ").read_bytes().split(b"\0") if variable)
            self.assertEqual(environment[b"CUDA_MPS_PIPE_DIRECTORY"], folder.name.encode())
            self.assertEqual(environment.get(b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), percentage)
            self.assertEqual(client.finish(), 0)
        with settings_file('[tenant.default]\nmps = "run"\n') as file:
            self.start([paths.FARGPUD, "--config", file]).err.find(lambda line: "mps of tenant 'default' is" in line
                                                                   and "from the root on" in line)

    def test_a_large_lease_that_waits_is_not_overtaken(self):
        host = self.broker(env={"FARGPU_FAKE_DEVICES": 1})
        whole = host.status()["devices"][0]["memory_bytes"]
        small = {"FARGPU_MEM": str(whole // 4)}
        running = [self.client(host, "init", env=small) for _ in range(2)]
        large = self.client(host, env={"FARGPU_MEM": str(whole * 3 // 4), "FARGPU_WAIT": "60s"})
        large.begin("init")
        host.log("lease waits")
        late = self.client(host, env=small)
        self.assertEqual(late.ask("init"), "SYSTEM_NOT_READY")
        late.says("less what is kept for those that wait already")
        for client in running:
            self.assertEqual(client.finish(), 0)
        self.assertEqual(large.answer(), "SUCCESS")
        self.assertEqual(self.client(host, env=small).ask("init"), "SUCCESS")


def hear(connection):
    """What comes, or nothing where that is over, in whatever way."""
    try:
        return connection.recv(4096)
    except ConnectionError:
        return b""


class Floods(SystemTest):
    def knock(self, host, address="127.0.0.1"):
        connection = socket.create_connection(("127.0.0.1", host.port), timeout=10, source_address=(address, 0))
        self.addCleanup(connection.close)
        return connection

    def refused(self, host, address="127.0.0.1"):
        connection = self.knock(host, address)
        try:
            connection.sendall(b"\xff" * 64)
            while connection.recv(4096):
                pass
        except ConnectionError:
            pass

    def test_a_source_of_nonsense_is_told_a_few_times_and_then_shut_out(self):
        host = self.broker("--refusals-per-address-max", "100")
        bystander = self.client(host, "init", "context", "alloc a 4096", "write a 5")
        for _ in range(150):
            self.refused(host, "127.0.0.2")
        self.assertEqual(host.log("source shut out")["source"], "127.0.0.2")
        loud = [line for line in host.process.err.seen if "warning" in line and "127.0.0.2" in line]
        self.assertLessEqual(len(loud), 11)
        # It is not heard any more, for a while, and others are.
        caller = self.knock(host, "127.0.0.2")
        caller.sendall(frame(control(f"(hello = ({VERSION}))")))
        self.assertIn(b"has shut out your address", b"".join(iter(lambda: hear(caller), b"")))
        self.assert_lives(bystander)
        self.assert_lives(self.client(host, "init", "context", "alloc a 4096", "write a 5"))

    def test_the_loopback_is_everybodys_and_not_shut_out(self):
        host = self.broker("--refusals-per-address-max", "100")
        for _ in range(150):
            self.refused(host)
        self.assertEqual(host.log("source not shut out")["source"], "127.0.0.1")
        self.assertEqual(fargpu("ls", pool=host.pool).code, 0)
        self.assert_lives(self.client(host, "init", "context", "alloc a 4096", "write a 5"))

    def test_wrong_tickets_count_too(self):
        host = self.broker("--refusals-per-address-max", "30")
        attach = frame(control(f'(attach = ({VERSION}, ticket = "' + "x" * 32 + '"))'))
        for _ in range(40):
            try:
                connection = self.knock(host, "127.0.0.3")
                connection.sendall(attach)
                while connection.recv(4096):
                    pass
            except ConnectionError:
                pass
        self.assertEqual(host.log("source shut out")["source"], "127.0.0.3")

    def ask_for_lanes(self, host, address, lane, count):
        for _ in range(count):
            try:
                connection = self.knock(host, address)
                connection.sendall(frame(control(lane)))
                while connection.recv(4096):
                    pass
            except ConnectionError:
                pass

    def test_bulk_lanes_of_others_sessions_count_too(self):
        host = self.broker("--refusals-per-address-max", "30")
        client = self.client(host, "init", "context", "alloc a 4096", "write a 5")
        session = host.log("session started", pid=client.pid)["session"]
        self.ask_for_lanes(host, "127.0.0.5", f'(lane = (sessionId = {session}, key = 0x"{"00" * 48}"))', 20)
        self.ask_for_lanes(host, "127.0.0.5", f"(lane = (sessionId = {session}7))", 20)
        self.assertEqual(host.log("source shut out")["source"], "127.0.0.5")
        self.assert_lives(client)

    def test_a_bulk_lane_that_comes_when_its_session_has_ended_does_not_count(self):
        host = self.broker("--refusals-per-address-max", "30")
        caller = self.connection(host)
        caller.say(f"(hello = ({VERSION}))")
        caller.hear()
        caller.say("(leaseRequest = (gpus = 1))")
        ticket = data_of("ticket", caller.hear())
        session = self.connection(host)
        session.say(f"(attach = (ticket = 0x\"{ticket}\", {VERSION}, driverVersion = 13000, deviceWindows = [(base = "
                    f"{0x1000_0000_0000}, "
                    f"bytes = {1 << 36})], hostWindows = [(base = {0x2b5d_4000_0000}, bytes = {1 << 36})]))")
        answer = session.hear()
        key = data_of("laneKey", answer)
        number = re.search(r"sessionId = (\d+)", answer).group(1)
        session.close()
        host.log("session ended", session=number)
        self.ask_for_lanes(host, "127.0.0.6", f"(lane = (sessionId = {number}, key = 0x\"{key}\"))", 40)
        self.assertEqual(host.logged("source shut out") + host.logged("connection refused"), [])

    def test_half_open_connections_are_bounded_and_told_of(self):
        host = self.broker("--callers-per-address-max", "20", "--handshake-seconds", "2")
        held = [self.knock(host, "127.0.0.4") for _ in range(60)]
        wait_until(lambda: len(host.logged("connection cut")) >= 40, "room made")
        self.assert_lives(self.client(host, "init", "context", "alloc a 4096", "write a 5"))
        wait_until(lambda: len(host.logged("connection refused")) >= 20, "an end of waiting for the others")
        loud = [line for line in host.process.err.seen if "warning" in line and "127.0.0.4" in line]
        self.assertLessEqual(len(loud), 11)
        self.assertEqual(len(held), 60)


@unittest.skipIf(paths.SANITIZED, "it needs the software GPU")
class Stolen(SystemTest):
    def test_a_handle_of_shared_memory_opens_nothing_for_another_tenant(self):
        with tempfile.TemporaryDirectory() as folder, settings_file("[tenant.one]\n[tenant.other]\n") as file:
            tokens = Path(folder) / "tokens"

            def token(tenant):
                done = fargpu("token", "create", "--file", tokens, "--name", tenant, "--tenant", tenant, "--ttl", "1h")
                return {"FARGPU_TOKEN": done.out.strip()}

            one, other = token("one"), token("other")
            host = self.broker("--token-file", tokens, config=file, driver=paths.SOFTWARE_GPU)
            block = ("init", "context", f"alloc a {2 * MIB}", "write a 94")
            owner = self.client(host, *block, env=one)
            handle = owner.must("export a").split()[1]
            friend = self.client(host, *block, env=one)
            friend.must(f"open a {handle}")
            self.assert_lives(friend)
            owner.must("write a 7")
            self.assertEqual(friend.ask("check a"), "SUCCESS different")  # it is the same memory
            thief = self.client(host, *block, env=other)
            self.assertEqual(thief.ask(f"open a {handle}"), "INVALID_VALUE")
            self.assert_lives(thief)

    def test_what_a_broker_has_not_read_yet_is_shared_all_the_same(self):
        """A client opens a block by the handle that its maker gave it; the broker has heard of neither yet."""
        host = self.broker(driver=paths.SOFTWARE_GPU)
        blocks = [str(i) for i in range(8)]
        owner = self.client(host, "init", "context", *(f"alloc {i} {4 * MIB}" for i in blocks), "write 7 94")
        friend = self.client(host, "init", "context", f"alloc a {4 * MIB}", "write a 94")
        os.kill(host.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, host.pid, signal.SIGCONT)
        handles = [owner.must(f"export {i}").split()[1] for i in blocks]
        friend.begin(f"open a {handles[-1]}")
        time.sleep(0.3)  # nothing shows that its worker has asked; were that later, the broker would have read the rest
        os.kill(host.pid, signal.SIGCONT)
        self.assertEqual(friend.answer(), "SUCCESS")
        self.assert_lives(friend)


@unittest.skipIf(paths.SANITIZED, "it needs the software GPU")
class Inherited(SystemTest):
    def test_memory_of_a_session_that_has_ended_is_charged_to_one_that_has_it(self):
        with settings_file('[tenant.default]\nmemory = "96MiB"\n') as file:
            host = self.broker(config=file, driver=paths.SOFTWARE_GPU)
        maker = self.client(host, "init", "context", f"alloc a {64 * MIB}")
        handle = maker.must("export a").split()[1]
        holder, friend = (self.client(host, "init", "context", f"alloc a {2 * MIB}", "write a 9") for _ in range(2))
        for client in (holder, friend):
            client.must("free a")
            client.must(f"open a {handle}")
        self.assertEqual(friend.ask(f"alloc b {64 * MIB}"), "OUT_OF_MEMORY")
        self.assertEqual(maker.finish(), 0)
        wait_until(lambda: len(host.status()["sessions"]) == 2, "the end of the session")
        self.assertEqual(friend.ask(f"alloc b {64 * MIB}"), "OUT_OF_MEMORY")
        friend.must(f"alloc b {16 * MIB}")
        # When nobody has it any more there is room again.
        for client in (holder, friend):
            self.assertEqual(client.finish(), 0)
        wait_until(lambda: not host.status()["sessions"], "the end of the others")
        self.client(host, "init", "context", f"alloc b {64 * MIB}")


class Fairness(SystemTest):
    """What a broker has of its own is for all tenants."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        tokens = Path(folder.name) / "tokens"

        def token(tenant):
            done = fargpu("token", "create", "--file", tokens, "--name", tenant, "--tenant", tenant, "--ttl", "1h")
            return {"FARGPU_TOKEN": done.out.strip()}

        self.one, self.other = token("one"), token("other")
        with settings_file("[tenant.one]\n[tenant.other]\n") as file:
            # A quarter of the descriptors is for what is shared, another for waiting clients.
            self.host = self.broker("--token-file", tokens, config=file, wrapper=("prlimit", "--nofile=256:256"))

    def test_one_tenant_leaves_others_room_for_what_they_share(self):
        greedy, other = (self.client(self.host, "init", "context", env=tenant) for tenant in (self.one, self.other))

        def share(who, count):
            for i in range(count):
                who.must(f"alloc {i} {2 * MIB}")
                who.must(f"write {i} 5")
                who.must(f"export {i}")

        share(greedy, 90)
        self.host.log("too much shared")
        share(other, 10)
        self.assert_lives(other, "9")
        refused = {int(fields["worker"]) for fields in self.host.logged("too much shared")}
        self.assertEqual(refused, {self.worker_of(self.host, greedy)})
        # A few of a minute have a line in the log at the usual level.
        told = [line for line in map(parse_event, self.host.process.err.seen) if line and line[1] == "too much shared"]
        self.assertGreater(len(told), 10)
        self.assertEqual({level for level, _, _ in told[10:]}, {"debug"})

    def test_one_tenant_leaves_others_room_to_wait_for_leases_and_to_hold_them(self):
        answers = []
        for i in range(70):
            connection = self.connection(self.host)
            connection.say(f'(hello = ({VERSION}, token = "{self.one["FARGPU_TOKEN"]}"))')
            connection.hear()
            connection.say(f'(leaseRequest = (job = 0x"{i:032x}", hold = true))')
            answers.append(connection.hear())
        self.assertIn("too many clients wait", answers[-1])
        self.assert_lives(self.client(self.host, "init", "context", "alloc a 4096", "write a 5", env=self.other))


class LeftBehind(SystemTest):
    def test_scrubbing_is_for_hosts_with_tenants(self):
        for tenants, options, zeros in (("", (), False), ("", ("--scrub", "always"), True),
                                        ("[tenant.default]\n", (), True),
                                        ("[tenant.default]\n", ("--scrub", "never"), False)):
            with self.subTest(tenants=tenants, options=options), settings_file(tenants) as file:
                host = self.broker(*options, config=file, env={"FARGPU_FAKE_LEFT_BEHIND": "1"})
                client = self.client(host, "init", "context", f"alloc a {4 * MIB}")
                self.assertEqual(client.ask("check a"), "SUCCESS same" if zeros else "SUCCESS different")
                self.assertEqual(client.finish(), 0)
                host.close()

    def test_a_word_that_is_none(self):
        done = self.start([paths.FARGPUD, "--scrub", "sometimes", "--config", "/dev/null"])
        self.assertEqual(done.wait(), 2)
        self.assertIn("tenants, always or never", done.err.seen[-1])


if __name__ == "__main__":
    unittest.main()
