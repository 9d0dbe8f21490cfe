"""A fargpud of our own: on a port of its own, with the fake driver, and its log at hand."""

import contextlib
import json
import os
import re
import signal
import tempfile

from . import paths
from .process import Process, run

_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


def parse_event(line):
    """(level, event, fields) of one line of the log, or None."""
    parts = line.split(" ", 2)
    if len(parts) < 3 or parts[1] not in ("error", "warning", "info", "debug"):
        return None
    rest = parts[2]
    first = _FIELD.search(rest)
    event = rest[:first.start()].strip() if first else rest
    fields = {name: json.loads(value) if value.startswith('"') else value for name, value in _FIELD.findall(rest)}
    return parts[1], event, fields


class Broker:
    def __init__(self, *options, env=None, port=0, listen=None, config=os.devnull, driver=paths.FAKE_DRIVER,
                 wrapper=(), keep=()):
        # Nothing of the machine's own settings file counts, and no folder is shared with other tests.
        folder = () if "--image-folder" in options else ("--image-folder", "")
        if paths.TRANSPORT == "ucx" and "--rdma-transports" not in options:
            options = (*paths.UCX_BROKER, *options)
        self.process = Process([*wrapper, paths.FARGPUD, "--driver", driver, "--listen", listen or f"127.0.0.1:{port}",
                                *folder, "--log-level", "debug", "--config", config, *options], env=env,
                               keep=keep)
        try:
            self.port = int(self.log("listening")["port"])
            for address in (listen or "").split(","):  # which come one after the other
                if address.startswith("unix:"):
                    self.log("listening", address=address)
        except AssertionError:
            self.close()
            raise
        self.pool = f"127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def place(self):
        """Where the log ends now, for `start`."""
        return len(self.process.err.seen)

    def log(self, event, start=0, seconds=None, **fields):
        """Waits for a line of the log, and gives its fields."""
        def wanted(line):
            parsed = parse_event(line)
            if parsed and parsed[1] == event and all(parsed[2].get(k) == str(v) for k, v in fields.items()):
                return parsed[2] or {"event": event}
            return None
        more = {} if seconds is None else {"seconds": seconds}
        return self.process.err.find(wanted, start, **more)[0]

    def logged(self, event, start=0):
        """The fields of all such lines so far."""
        parsed = [parse_event(line) for line in self.process.err.seen[start:]]
        return [fields for found in parsed if found and found[1] == event for fields in [found[2]]]

    def status(self):
        """What `fargpu ls` says of this broker."""
        done = run([paths.FARGPU, "ls", "-o", "json"], env={"FARGPU_POOL": self.pool})
        if done.code != 0:
            raise AssertionError(f"fargpu ls failed with {done.code}: {done.out}{done.err}")
        return json.loads(done.out)[0]

    def sessions(self):
        return self.status()["sessions"]

    def workers(self):
        """Process ids of all workers it has started and not reaped. They are its children, so no id can be anybody
        else's."""
        with contextlib.suppress(OSError):
            with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as children:
                return [int(pid) for pid in children.read().split()]
        return []

    def terminate(self):
        self.process.signal(signal.SIGTERM)

    def wait(self, **more):
        return self.process.wait(**more)

    def close(self):
        # As its signal handler would: workers first, so that none is left behind.
        for pid in self.workers() if self.process.running() else []:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.close()


@contextlib.contextmanager
def settings_file(text):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        yield file.name
