"""The host of a soak: a broker on the software GPU whose memory is scarce, replaced now and then by the next one."""

import collections
import contextlib
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from rig import Broker, fargpu, paths, wait_until
from rig.broker import parse_event

RESUME_SECONDS = 30
ABSENCE_MAX = 3  # seconds without a broker
# Becomes the broker, with the socket that listens, as a service manager starts it.
GIVEN = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as giver:
    giver.connect(sys.argv[1])
    listener = socket.recv_fds(giver, 1, 1)[1][0]
os.dup2(listener, 3) if listener != 3 else os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""
COUNTED = ("session evicted", "session returned", "session not evicted", "session resumed", "session taken over")


def numbers(pid):
    """What a process takes."""
    process = Path("/proc", str(pid))
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    if "VmRSS" not in status:
        raise ProcessLookupError(f"process {pid} has ended")
    return {"memory": int(status["VmRSS"].split()[0]) * 1024, "files": len(list((process / "fd").iterdir())),
            "threads": int(status["Threads"])}


class Host:
    """The socket at which it listens stays when its broker is replaced, as it does where a service manager keeps it.
    Programs that begin meanwhile wait until they are heard."""

    def __init__(self, sessions, memory, log, fault):
        self.sessions_most, self.memory, self.fault = sessions, memory, fault
        self.writes = open(log, "w", encoding="utf-8") if log else None
        self.folder = tempfile.TemporaryDirectory()
        self.devices = str(Path(self.folder.name, "devices"))
        self.runtime = Path(self.folder.name, "sessions")
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        self.giver = socket.socket(socket.AF_UNIX)
        self.giver.bind(str(Path(self.folder.name, "giver")))
        self.giver.listen()
        threading.Thread(target=self.give, daemon=True).start()
        self.lock = threading.Lock()
        self.events = collections.Counter()   # those of COUNTED, and all warnings and errors
        self.replaced = collections.Counter()
        self.replacing = False
        self.broker = self.start()
        self.pool = self.broker.pool

    def give(self):
        with contextlib.suppress(OSError):
            while True:
                with self.giver.accept()[0] as taker:
                    socket.send_fds(taker, [b" "], [self.listener.fileno()])

    def start(self):
        return Broker("--sessions-max", str(2 * self.sessions_most + 8), "--resume-seconds", str(RESUME_SECONDS),
                      "--silence-seconds", "10", "--runtime-folder", str(self.runtime), "--evicted-bytes-max", "8GiB",
                      "--memory-oversubscription", "4", "--evict-quantum-seconds", "1", driver=paths.SOFTWARE_GPU,
                      port=self.port, wrapper=(sys.executable, "-c", GIVEN, str(Path(self.folder.name, "giver"))),
                      env={"FARGPU_SOFTGPU_MEMORY": f"{self.memory}MiB", "FARGPU_SOFTGPU_THREADS": "1",
                           "FARGPU_SOFTGPU_SHARED": self.devices})

    def running(self):
        return self.replacing or self.broker.process.running()

    def replace(self, chance):
        """By force or in order; the next broker comes at once or a little later."""
        broker, in_order = self.broker, chance.random() < 0.5
        self.replacing = True
        if in_order:
            broker.process.signal(signal.SIGUSR1)
        else:
            broker.process.kill()
        code = broker.wait(output=False)  # its workers write to the same stderr
        if code != (0 if in_order else -signal.SIGKILL):
            self.fault(f"the broker ended with {code} when it was replaced: {broker.process.err.text()[-3000:]}")
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0, ABSENCE_MAX))
        self.read_log()
        self.broker = self.start()
        self.replacing = False
        self.replaced["in order" if in_order else "by force"] += 1

    def evict(self, chance):
        """Whether a session went to the host's memory because that was asked for."""
        with contextlib.suppress(AssertionError):
            if sessions := self.broker.sessions():
                return fargpu("evict", str(chance.choice(sessions)["id"]), pool=self.pool).code == 0
        return False

    def session_of(self, pid):
        """What the broker says of a program's session; while it is replaced it says nothing."""
        def found():
            with contextlib.suppress(AssertionError):
                return [session for session in self.broker.sessions() if session["pid"] == pid] or None
            return None
        return wait_until(found, f"the session of process {pid}")[0]

    def read_log(self):
        """Counts what is in the log so far, and forgets it."""
        with self.lock:
            seen = self.broker.process.err.seen
            lines = seen[:]
            del seen[:len(lines)]
            for line in lines:
                level, event, _ = parse_event(line) or ("other", line, {})
                if level != "debug" and self.writes:
                    self.writes.write(line + "\n")
                if level == "error" or event == "session not taken over":
                    self.fault(f"the broker says: {line}")
                if event in COUNTED or level == "warning":
                    self.events[event] += 1

    def workers(self):
        """All workers there are, also those that no broker knows: by what they inherit."""
        mark, found = f"FARGPU_SOFTGPU_SHARED={self.devices}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "exe").readlink().name == "fargpu-worker" and \
                        mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found

    def left(self):
        """What is left of sessions that have ended, in words; nothing but a warm worker and its door may be."""
        status = self.broker.status()
        doors, workers = [path.name for path in self.runtime.glob("worker-*")], self.workers()
        left = {name: status[name] for name in ("sessions", "leases", "sessions_taken") if status[name]}
        if any(device["used_bytes"] for device in status["devices"]):
            left["devices"] = status["devices"]
        if status["warm_workers"] != 1 or len(doors) != 1 or len(workers) != 1 or workers != self.broker.workers():
            left.update(warm=status["warm_workers"], doors=doors, workers=workers, children=self.broker.workers())
        return left

    def close(self):
        workers = self.workers()
        self.broker.process.close() if not workers else self.broker.process.kill()
        for worker in workers:
            with contextlib.suppress(OSError):
                os.kill(worker, signal.SIGKILL)
        self.listener.close()
        self.giver.close()
        self.folder.cleanup()
        if self.writes:
            self.writes.close()
