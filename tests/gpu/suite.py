"""Running programs on the local driver and through fargpu, and comparing what comes of them."""

import concurrent.futures
import contextlib
import glob
import json
import math
import os
import re
import signal
import subprocess
import sys
import time

from disturb import Disturbance, Evictor
from driver import WithoutDriver, driver_library

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "programs")
JOBS = max(8, os.cpu_count() // 2)  # processes at once, where a group has many small ones


def without_words(text):
    """A program's output, without the lines that fargpu writes beside it."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("fargpu: "))


class Suite:
    def __init__(self, options):
        self.stage, self.out, self.kept = (os.path.abspath(path)
                                           for path in (options.stage, options.out, options.local or options.out))
        self.keeps, self.taken = bool(options.local), 0
        for folder in (self.out, self.kept):
            os.makedirs(folder, exist_ok=True)
        self.driver = driver_library()
        self.without_driver = WithoutDriver(self.driver)
        self.transport, self.rtt, self.cut, self.scrub = options.transport, options.rtt, options.cut, options.scrub
        self.rows = []
        self.evict, self.replace, self.replaced, self.disturbances = options.evict, options.replace, 0, []
        self.contents = options.contents and os.path.abspath(options.contents)
        self.broker = self.proxy = None
        self.began = time.time()

    # --- running -----------------------------------------------------------------------------------------------------

    def start_host(self, name="fargpud", *options, port=0):
        """A broker that serves this machine's devices, with these further options; returns its process and its
        address."""
        log = open(os.path.join(self.out, name + ".log"), "w")
        broker = subprocess.Popen(
            [self.stage + "/bin/fargpud", "--driver", self.driver, "--listen", f"127.0.0.1:{port}", "--image-folder",
             self.out + "/images",
             "--scrub", "always" if self.scrub else "tenants", "--log-level", "debug",
             *(["--content-folder", self.contents, "--content-bytes-max", "32GiB"] if self.contents else []),
             *options],
            stderr=log, stdout=log)
        return broker, "127.0.0.1:" + self.port_of(broker, log.name, r"listening .*address=127.0.0.1 port=(\d+)")

    def start_broker(self):
        options = ["--evicted-bytes-max", "64GiB"] if self.evict else []
        if self.replace:
            sessions = os.path.join(self.out, "sessions")
            os.makedirs(sessions, mode=0o700, exist_ok=True)
            options += ["--runtime-folder", sessions]
        if self.cut:  # by itself a host lets no client of its own machine resume
            options += ["--resume-seconds", "60"]
        self.broker, self.pool = self.start_host("fargpud", *options)
        if self.evict:
            self.disturbances.append(Evictor(self.stage + "/bin/fargpu", self.pool, self.evict))
        if self.replace:
            self.disturbances.append(Disturbance(self.replace, lambda: self.replace_broker(options)))
        if self.rtt or self.cut:
            with open(self.proxy_log(), "w") as log:
                self.proxy = subprocess.Popen([self.stage + "/bin/proxy", "--to", self.pool,
                                               "--delay-us", str(round(self.rtt * 500)),
                                               "--cut-ms", str(round(self.cut * 1000))],
                                              stdin=subprocess.PIPE, stdout=log, stderr=log)
            self.pool = "127.0.0.1:" + self.port_of(self.proxy, log.name, r"port (\d+)")

    def proxy_log(self):
        return os.path.join(self.out, "proxy.log")

    # As after a crash: the next one takes over the sessions.
    def replace_broker(self, options):
        self.broker.kill()
        self.broker.wait()
        self.replaced += 1
        port = self.pool.rpartition(":")[2]
        self.broker, _ = self.start_host(f"fargpud.{self.replaced}", *options, port=port)

    @staticmethod
    def port_of(process, log, pattern):
        for _ in range(600):
            match = re.search(pattern, open(log).read())
            if match:
                return match[1]
            if process.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"{os.path.basename(process.args[0])} did not start:\n" + open(log).read())

    def stop_broker(self):
        for disturbance in self.disturbances:
            disturbance.end()
            if isinstance(disturbance, Evictor):
                self.row("evicted meanwhile", disturbance.evicted > 0, str(disturbance))
        if self.replace:
            self.row("brokers killed and replaced meanwhile", self.replaced > 0, str(self.replaced))
        if self.contents:
            self.row("contents known", *self.known_contents())
        if self.proxy:
            self.proxy.stdin.close()
            self.proxy.wait(10)
        if self.cut:
            cuts = int(re.search(r"cut (\d+)", open(self.proxy_log()).read())[1])
            self.row("connections cut meanwhile", cuts > 0, str(cuts))
        self.stop_host(self.broker)

    def known_contents(self):
        """Whether any took part, and how many."""
        asked = subprocess.run([self.stage + "/bin/fargpu", "cache", "-o", "json", "--host", self.pool],
                               capture_output=True, text=True, check=False)
        if asked.returncode != 0:
            return False, asked.stderr.strip()
        told = json.loads(asked.stdout)
        return told["known_bytes"] + told["kept_bytes"] > 0, "; ".join(
            f"{told[key] / 1e9:.2f} GB {what}" for key, what in (
                ("known_bytes", "did not travel"), ("kept_bytes", "were added"), ("bytes", "are kept")))

    @contextlib.contextmanager
    def host(self, name, *options):
        """The address of a further broker."""
        broker, address = self.start_host(name, *options)
        try:
            yield address
        finally:
            self.stop_host(broker)

    @staticmethod
    def stop_host(broker):
        broker.send_signal(signal.SIGTERM)
        try:
            broker.wait(20)
        except subprocess.TimeoutExpired:
            broker.kill()

    def environment(self, extra=None):
        env = dict(os.environ, PYTHONUNBUFFERED="1", CUBLAS_WORKSPACE_CONFIG=":4096:8")
        env.update(extra or {})
        return env

    def call(self, label, command, timeout, extra=None, cwd=None, folder=None):
        """Runs to the end; returns (exit code, seconds, output). The output is kept in a file too. What a program
        leaves behind, or all of it when it is late, is ended."""
        begin = time.time()
        path = os.path.join(folder or self.out, label + ".log")
        with open(path, "w") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                       env=self.environment(extra), cwd=cwd, start_new_session=True)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                code = "timeout"
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        with open(path, errors="replace") as log:
            return code, time.time() - begin, log.read()

    def caches(self, folder):
        """Where torch.compile and Triton keep what they compile. What autotuning finds is kept there too, so that runs
        that share a folder run the same kernels: one that is not for a {kind} of run lies with the local runs."""
        folder = os.path.join(self.out if "{kind}" in folder else self.kept, "caches", folder)
        return {"TORCHINDUCTOR_CACHE_DIR": folder + "/inductor", "TRITON_CACHE_DIR": folder + "/triton"}

    def library_path(self):
        """Where programs that are linked with the toolkit's libraries find them: in the toolkit, else where Python's
        packages have them."""
        folders = ["/usr/local/cuda/lib64"]
        for place in sys.path:
            folders += sorted(glob.glob(os.path.join(place, "nvidia", "*", "lib")))
        return ":".join([*(folder for folder in folders if os.path.isdir(folder)),
                         *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])

    def local(self, label, command, timeout=200, extra=None, cwd=None):
        """A run that ended well is not repeated if an earlier run of the suite kept it."""
        known = self.known(label)
        if self.is_known(label):
            self.taken += 1
            with open(known) as file:
                return json.load(file)
        ended = self.call(label + ".local", command, timeout, extra, cwd, self.kept)
        if self.keeps and ended[0] == 0:
            with open(known + ".new", "w") as file:
                json.dump(ended, file)
            os.replace(known + ".new", known)
        return ended

    def known(self, label):
        return os.path.join(self.kept, label + ".known.json")

    def is_known(self, label):
        return self.keeps and os.path.exists(self.known(label))

    def remote(self, label, command, timeout=200, extra=None, cwd=None):
        check = [] if extra and "FARGPU_HOSTS" in extra else ["--no-check"]  # a job leases several hosts first
        full = self.without_driver.command([self.stage + "/bin/fargpu", "run", *check, "--"] + command)
        return self.call(label + ".remote", full, timeout,
                         {"FARGPU_POOL": self.pool, "FARGPU_TRANSPORT": self.transport,
                          **({"FARGPU_CONTENT_CACHE": "on"} if self.contents else {}), **(extra or {})}, cwd)

    def cases_of(self, folder, pattern, extra=None):
        """[(label, command)] of programs that name their cases when they are called without arguments."""
        cases = []
        for path in sorted(glob.glob(os.path.join(self.stage, folder, pattern))):
            _, _, text = self.call("cases." + os.path.basename(path), [path], 60, extra)
            cases += [(f"{os.path.basename(path)}.{name}", [path, name]) for name in text.split()]
        return cases

    def same_cases(self, name, cases, timeout, extra=None):
        """Each case's exit code and output are equal, without what fargpu says. Where they are not, the local run is
        repeated: what does not repeat itself need only end alike."""
        def answer(case):
            label, command = case
            runs = [self.local, self.remote]
            found = [f"exit {code}: {without_words(text)}"
                     for code, _, text in (run(label, command, timeout, extra) for run in runs)]
            if found[0] != found[1]:
                code, _, text = self.local(label + ".again", command, timeout, extra)
                varies = f"exit {code}: {text}" != found[0]
                if varies and [one.split(":")[0] for one in found] == [f"exit {code}"] * 2:
                    varying.append(label)
                    found[1] = found[0]
            return found

        varying = []
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            answers = dict(zip((label for label, _ in cases), pool.map(answer, cases)))
        self.same_answers(name, answers)
        failed = [label for label, (local, _) in answers.items() if not local.startswith("exit 0")]
        note = f"; vary locally: {' '.join(varying)}" if varying else ""
        names = f"; not: {' '.join(failed)}" if failed else ""
        self.row(f"{name} on the local driver", not failed,
                 f"{len(answers) - len(failed)} of {len(answers)} pass{names}{note}")

    # --- comparing ---------------------------------------------------------------------------------------------------

    def row(self, name, good, note=""):
        self.rows.append((name, "ok" if good else "FAILED", note))
        print(f"{'ok    ' if good else 'FAILED'} {name}  {note}", flush=True)

    def same_output(self, name, command, timeout=60):
        """Exit code and output are equal."""
        lcode, lseconds, ltext = self.local(name, command, timeout)
        rcode, rseconds, rtext = self.remote(name, command, timeout)
        if self.cut:  # it has to say so
            rtext = without_words(rtext)
        good = lcode == rcode == 0 and ltext == rtext
        note = f"{lseconds:.1f} s, {rseconds:.1f} s"
        if not good:
            note = f"exit {lcode}, {rcode}; {rtext[-300:]!r}"
        self.row(name, good, note)

    def same_answers(self, name, answers, excused=lambda local, remote: False):
        """Named answers, as pairs {name: (locally, remotely)}, are equal or excused; those that differ are shown."""
        different = {case: pair for case, pair in sorted(answers.items()) if pair[0] != pair[1] and not excused(*pair)}
        for case, (local, remote) in different.items():
            self.row(f"{name}.{case}", False, f"{local[-400:]!r} locally, {remote[-400:]!r} remotely")
        self.row(name, not different and bool(answers), f"{len(answers) - len(different)} of {len(answers)} equal")

    def same_results(self, name, script, arguments=(), timeout=230, tolerance=1e-2, extra=None, in_turn=False,
                     says=None, remote_extra=None,
                     may_fail=lambda case, error: False):
        """A Python program's results are equal: bit by bit where two local runs agree bit by bit, else within a
        tolerance.

        Local and remote runs go on at the same time, unless `in_turn`. In `extra` {kind} stands for which run it is;
        `remote_extra` is for the remote run.
        `says` is what the one line matches that fargpu has to say in the remote run. `may_fail` tells which cases may
        fail remotely, by name and error."""
        def job(kind):
            run, folder = (self.remote, self.out) if kind == "remote" else (self.local, self.kept)
            target = os.path.join(folder, f"{name}.{kind}.json")
            if os.path.exists(target) and (kind == "remote" or not self.is_known(f"{name}.{kind}")):
                os.remove(target)
            command = ["python3", os.path.join(PROGRAMS, script), target, *arguments]
            settings = {**(extra or {}), **((remote_extra or {}) if kind == "remote" else {})}
            settings = {key: value.replace("{kind}", kind) for key, value in settings.items()}
            code, seconds, text = run(f"{name}.{kind}", command, timeout, settings)
            try:
                return code, seconds, json.load(open(target))["entries"], text
            except (OSError, ValueError):
                return code, seconds, {}, text

        with concurrent.futures.ThreadPoolExecutor(1 if in_turn else 2) as pool:
            first, remote = pool.map(job, ("first", "remote"))
        # Again, only where the first run leaves a doubt.
        differs = any("sha" in a and a.get("sha") != remote[2].get(case, {}).get("sha") for case, a in first[2].items())
        second = job("second") if differs else first
        said = re.findall(r"(?m)^fargpu.*", remote[3])
        note = f"{first[1]:.0f} s local, {remote[1]:.0f} s remote" + "".join(f"; says: {line[:200]}"
                                                                             for line in said[:3])
        if says is not None:
            self.row(f"{name} in words", len(said) == 1 and re.search(says, said[0]) is not None, "; ".join(said[:5]))
        if remote[0] != 0:
            self.row(name, False, f"exit {remote[0]} (local {first[0]}); {remote[3][-400:]!r}")
        if first[0] != 0:
            self.row(name, False, f"local run: exit {first[0]}; {first[3][-300:]!r}")
        equal = close = bad = 0
        failing = []
        for case, a in first[2].items():
            b, r = second[2].get(case, {}), remote[2].get(case)
            if "error" in a:
                failing.append(case)
            if r is None:
                self.row(f"{name}.{case}", False, "no remote result")
                bad += 1
            elif "error" in a or "error" in r:
                same = a.get("error") == r.get("error") or may_fail(case, r.get("error"))
                bad += not same
                if not same:
                    self.row(f"{name}.{case}", False, f"local: {a.get('error')}; remote: {r.get('error')}")
            elif a["sha"] == r["sha"]:
                equal += 1
            elif a["sha"] != b.get("sha") and a.get("shape") == r.get("shape") and math.isclose(
                    a.get("sum", 0), r.get("sum", 0), rel_tol=tolerance, abs_tol=tolerance * max(1.0, a.get("max", 0))):
                close += 1
            else:
                bad += 1
                self.row(f"{name}.{case}", False, f"local {a}, again {b}, remote {r}")
        if failing:
            note += f"; {len(failing)} fail locally: {' '.join(failing)}"
        self.row(name, remote[0] == 0 and first[0] == 0 and bad == 0 and equal + close > 0,
                 f"{equal} bit-equal, {close} close (local runs differ too), {bad} different; {note}")

    def table(self):
        width = max((len(r[0]) for r in self.rows), default=4)
        print(f"\n{'program':<{width}}  result  note   (whole run: {time.time() - self.began:.0f} s"
              + (f"; {self.taken} local runs are those of an earlier one)" if self.taken else ")"))
        for name, result, note in self.rows:
            print(f"{name:<{width}}  {result:<6}  {note[:600]}")
        bad = sum(r[1] != "ok" for r in self.rows)
        print(f"\n{len(self.rows) - bad} passed, {bad} failed")
        return bad
