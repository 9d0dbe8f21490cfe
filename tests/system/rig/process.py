"""Child processes whose output is read as it comes, and waits that end by an event or a deadline."""

import collections
import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from . import paths

# Seconds after which something that must happen did not. Nothing that goes well takes a tenth of it.
PATIENCE = 60 if paths.SANITIZED else 20

# Here sanitizers report, rather than on the stderr of a process that a test may be about to kill.
_reports = tempfile.TemporaryDirectory() if paths.SANITIZED else None


def take_sanitizer_reports():
    """What sanitizers have reported since the last time."""
    texts = []
    for path in sorted(Path(_reports.name).iterdir()) if _reports else []:
        texts.append(path.read_text(errors="replace"))
        path.unlink()
    return texts


def wait_until(condition, what, seconds=PATIENCE):
    """Waits until condition() gives something true, and returns it."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise AssertionError(f"after {seconds} s still not: {what}")
        time.sleep(0.01)


def wait_gone(pid, seconds=PATIENCE):
    """Waits until a process has ended, child of ours or not."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([handle], [], [], seconds)[0]:
            raise AssertionError(f"process {pid} is still there after {seconds} s")
    finally:
        os.close(handle)


class Lines:
    """The lines of a stream, kept as they come; any number of readers, each with a place of its own."""

    def __init__(self, stream):
        self.seen = []
        self.ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream):
        with stream:
            for line in stream:
                with self._changed:
                    self.seen.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def find(self, wanted, start=0, seconds=PATIENCE):
        """The first line from `start` on for which wanted(line) gives something true: that, and the place behind the
        line."""
        deadline = time.monotonic() + seconds
        at = start
        with self._changed:
            while True:
                while at < len(self.seen):
                    result = wanted(self.seen[at])
                    at += 1
                    if result:
                        return result, at
                left = deadline - time.monotonic()
                if self.ended or left <= 0:
                    reason = "the stream ended" if self.ended else f"{seconds} s passed"
                    raise AssertionError(f"{reason} without the line that was waited for; what came:\n" +
                                         "\n".join(self.seen))
                self._changed.wait(left)

    def text(self):
        with self._changed:
            return "\n".join(self.seen)

    def join(self):
        self._thread.join(PATIENCE)


class Process:
    """A child process. `out` and `err` are its output, line by line. It has the descriptors of `keep` under their
    numbers."""

    def __init__(self, arguments, env=None, cwd=None, keep=()):
        self._process = subprocess.Popen(
            [a if isinstance(a, bytes) else str(a) for a in arguments], env=environment(env), cwd=cwd, text=True,
            errors="replace", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=keep)
        self.pid = self._process.pid
        self.out = Lines(self._process.stdout)
        self.err = Lines(self._process.stderr)

    def send_line(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self._process.kill()

    def running(self):
        return self._process.poll() is None

    def wait(self, seconds=PATIENCE, output=True):
        """Its exit code, as subprocess has it: negative for a signal. Waits for the end of its output too, unless
        others have it open."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self._process.args[0]} still runs after {seconds} s; it said:\n{self.out.text()}\n"
                                 f"{self.err.text()}") from None
        if output:
            self.out.join()
            self.err.join()
        return code

    def close(self):
        """Ends it, whatever state it is in."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self.running():
            with contextlib.suppress(OSError):
                self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        self._process.wait(PATIENCE)
        self.out.join()
        self.err.join()


Finished = collections.namedtuple("Finished", "code out err")


def run(arguments, env=None, cwd=None, seconds=PATIENCE):
    """Runs a program to its end."""
    done = subprocess.run([a if isinstance(a, bytes) else str(a) for a in arguments], env=environment(env), cwd=cwd,
                          text=True, errors="replace", stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    return Finished(done.returncode, done.stdout, done.stderr)


def environment(changes=None):
    """The environment of tests: nothing of fargpu or CUDA that the caller's shell has, and `changes`; None takes one
    away."""
    names = ("FARGPU_", "FARGPUD_", "CUDA_", "LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH")
    result = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    result.update(paths.UCX_CLIENT if paths.TRANSPORT == "ucx" else {"FARGPU_TRANSPORT": paths.TRANSPORT})
    if _reports:
        common = f"log_path={_reports.name}/report:abort_on_error=1"
        # Client programs are killed and forked in all ways; what they leak is not what is tested.
        result["ASAN_OPTIONS"] = f"{common}:detect_leaks=0"
        result["UBSAN_OPTIONS"] = "print_stacktrace=1"
        result["TSAN_OPTIONS"] = ":".join(filter(None, (os.environ.get("TSAN_OPTIONS"), common, "halt_on_error=1")))
    for name, value in (changes or {}).items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = str(value)
    return result
