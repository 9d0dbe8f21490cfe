"""What happens to sessions while their programs run: their memory is evicted, their broker is killed and replaced."""

import json
import os
import re
import subprocess
import threading


class Disturbance:
    """Does `act` every so many seconds, until it is over."""

    def __init__(self, seconds, act):
        self._seconds, self._act, self._over = seconds, act, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._over.wait(self._seconds):
            self._act()

    def end(self):
        self._over.set()
        self._thread.join()


class Evictor(Disturbance):
    """Evicts all sessions of a host, one after the other."""

    def __init__(self, fargpu, address, seconds):
        self.evicted, self.stayed = 0, {}
        self._fargpu, self._env = fargpu, dict(os.environ, FARGPU_POOL=address)
        super().__init__(seconds, self._evict_all)

    def _call(self, *arguments):
        return subprocess.run([self._fargpu, *arguments], env=self._env, capture_output=True, text=True, check=False)

    def _evict_all(self):
        listed = self._call("ls", "-o", "json")
        if listed.returncode != 0:
            return
        for session in json.loads(listed.stdout)[0]["sessions"]:
            done = self._call("evict", str(session["id"]))
            if done.returncode == 0:
                self.evicted += 1
            else:
                why = re.sub(r"session \d+", "the session", done.stderr.strip().rpartition("stays: ")[2])
                self.stayed[why] = self.stayed.get(why, 0) + 1

    def __str__(self):
        stayed = "".join(f"; {count} times not, because {why}" for why, count in sorted(self.stayed.items()))
        return f"{self.evicted} evictions{stayed}"
