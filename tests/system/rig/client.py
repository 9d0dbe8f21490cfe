"""A client program under control: it makes the CUDA calls it is told to, one line each. See programs/commanded.cpp."""

import time

from . import paths
from .process import PATIENCE, Process


class Client:
    def __init__(self, broker, *commands, through_run=False, env=None):
        """Starts it, and has it do these commands, each of which must succeed."""
        start = [paths.FARGPU, "run", "--"] if through_run else []
        more = {} if through_run else {"LD_LIBRARY_PATH": paths.LIBRARIES}
        pool = broker if isinstance(broker, str) else broker.pool
        self.process = Process([*start, paths.PROGRAMS / "commanded"], env={"FARGPU_POOL": pool, **more, **(env or {})})
        self._place = 0
        for command in commands:
            self.must(command)

    @property
    def pid(self):
        return self.process.pid

    def begin(self, command):
        """Sends a command; answer() has its outcome."""
        self.process.send_line(command)

    def answer(self, seconds=PATIENCE):
        line, self._place = self.process.out.find(lambda text: text, self._place, seconds)
        return line

    def ask(self, command, seconds=PATIENCE):
        """A command's outcome: the name of its CUresult, with more behind it where there is more to say."""
        self.begin(command)
        return self.answer(seconds)

    def begin_loop(self, command):
        """Begins a command that does the same again and again, and returns when a round of it is under way."""
        self.begin(command)
        if self.answer() != "begun":
            raise AssertionError(f"'{command}' did not begin")
        time.sleep(0.02)  # into the middle of a round

    def must(self, command):
        answer = self.ask(command)
        if not answer.startswith("SUCCESS"):
            raise AssertionError(f"'{command}' gave {answer}; {self.process.err.text()}")
        return answer

    def says(self, text):
        """Waits for a line on stderr with this in it."""
        return self.process.err.find(lambda line: text in line and line)[0]

    def errors(self):
        return self.process.err.text()

    def finish(self):
        """Lets it end as programs end; its exit code."""
        self.begin("exit 0")
        return self.process.wait()

    def close(self):
        self.process.close()
