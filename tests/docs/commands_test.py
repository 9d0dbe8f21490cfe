"""The commands of the README and of the tutorial, run as they stand there, on the software GPU and on this machine
alone."""

import os
import re
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

from pages import SOURCE
from reference import BUILD

PATIENCE = 120  # seconds for all commands of a section
EXAMPLE = BUILD / "examples" / "vector_add_runtime"
SOFTWARE_GPU = BUILD / "server" / "softgpu" / "libfargpu-softgpu.so"

# `fargpud` begins in the background, in the place of the one before, and is there when it listens. What is run is an
# example.
PRELUDE = f"""
set -u
fargpud() {{
  [ -z "${{broker:-}}" ] || {{ kill -INT "$broker"; wait "$broker"; }}
  [[ "$*" == *--config* ]] || set -- --config /dev/null "$@"
  : >broker.log  # what the one before said is not this one's
  command fargpud --driver {SOFTWARE_GPU} --image-folder "" "$@" >broker.log 2>&1 &
  broker=$!
  until grep -q " listening" broker.log; do kill -0 "$broker" || {{ cat broker.log >&2; exit 99; }}; sleep 0.02; done
}}
stop() {{ [ -z "${{broker:-}}" ] || {{ kill -INT "$broker"; wait "$broker" || true; }}; }}
trap stop EXIT
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def blocks(page, heading, language="sh"):
    """The blocks of code of a language below a heading, up to the next heading."""
    found, there, block = [], False, None
    for line in (SOURCE / page).read_text().splitlines(keepends=True):
        if line.startswith("```"):
            if block is None:
                block = []
                if there and line.strip() == "```" + language:
                    found.append(block)
            else:
                block = None
        elif block is not None:
            block.append(line)
        elif line.startswith("#"):
            there = line.strip("# \n") == heading
    return ["".join(block) for block in found]


class Commands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.port = free_port()

    def here(self, text):
        """The commands with this machine for the GPU host, and a free port."""
        text = text.replace("gpuhost.example.org",
                            "localhost").replace("FARGPU_POOL=localhost", f"FARGPU_POOL=tls://localhost:{self.port}")
        text = text.replace("tls://0.0.0.0:8470",
                            f"tls://127.0.0.1:{self.port}").replace("127.0.0.1:8470", f"127.0.0.1:{self.port}")
        return re.sub(r"-- python3 train\.py", f"-- {EXAMPLE}", text)

    def run_all(self, *texts):
        script = PRELUDE + "\n".join(texts)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("FARGPU", "CUDA_"))}
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE,
                              env={**clean, "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}", "LC_ALL": "C"})
        self.assertEqual(done.returncode, 0, f"{script}\n{done.stdout}{done.stderr}")
        return done

    def test_two_machines_of_the_readme(self):
        server, client = blocks("README.md", "Two machines")
        self.assertEqual(len((server + client).strip().splitlines()), 6)
        done = self.run_all("set -e", self.here(server), "cp pki/ca.crt .", self.here(client))
        self.assertEqual(done.stdout.count("PASSED"), 1, done.stderr)

    def test_the_readmes_quickstart(self):
        build, broker, program = blocks("README.md", "Quickstart")[0].splitlines()
        self.assertIn("--target quickstart", build)
        self.assertEqual(broker, "build/bin/fargpud &")
        (self.folder / "build").symlink_to(BUILD)
        done = self.run_all("set -e", f"fargpud --listen 127.0.0.1:{self.port}", self.here(program))
        self.assertIn("PASSED", done.stdout)

    def test_first_run(self):
        page = "docs/tutorial/first-run.md"
        (self.folder / "build").symlink_to(BUILD)
        done = self.run_all("set -e", f"fargpud --listen 127.0.0.1:{self.port}",
                            *(self.here(block) for heading in ("3. Run a program", "4. Look",
                                                               "5. See what the program did")
                              for block in blocks(page, heading)))
        self.assertEqual(done.stdout.count("PASSED"), 2, done.stdout)
        self.assertIn(blocks(page, "3. Run a program", "")[0], done.stdout)
        self.assertIn("everything is in order", done.stdout)
        self.assertIn("round trips", done.stderr)

    def test_two_machines(self):
        page = "docs/tutorial/two-machines.md"
        server, client = blocks(page, "A shared key")
        done = self.run_all("set -e", self.here(server), self.here(client))
        self.assertIn("PASSED", done.stdout)
        server, client = blocks(page, "Certificates and tokens")
        done = self.run_all("set -e", self.here(server), "cp pki/ca.crt .", self.here(client),
                            "fargpu token list --file tokens",
                            "fargpu token revoke --file tokens anna", "! fargpu ls")
        self.assertIn("PASSED", done.stdout)
        self.assertIn("was revoked", done.stdout + done.stderr)
        server, client = blocks(page, "Client certificates")
        done = self.run_all("set -e", self.here(server), "cp pki/* .", self.here(client))
        self.assertIn("PASSED", done.stdout)

    def test_a_team(self):
        page = "docs/tutorial/a-team.md"
        make, broker = blocks(page, "1. Tenants")
        anna, student, again = map(self.here, blocks(page, "2. Leases"))
        watch, = blocks(page, "3. Watching")
        policy = blocks(page, "4. Changing things while programs run")[0].splitlines()[0]
        refused, later = re.split(r"(?=^fargpu run -m 8GiB --wait)", again, flags=re.M)
        (self.folder / "fargpud.toml").write_text(self.here(blocks(page, "1. Tenants", "toml")[0]))
        as_anna, as_student, as_admin = (f"export FARGPU_TOKEN_FILE=$PWD/{name}.token"
                                         for name in ("anna", "course", "admin"))
        done = self.run_all(
            self.here(make), broker, "cp pki/ca.crt .", anna, as_student, student,
            as_anna, "fargpu run -m 8GiB -- sleep 100 & first=$!",
            "until fargpu ls | grep -q ' 8.0 GiB '; do sleep 0.05; done",
            refused, "(sleep 0.5; kill $first) &", later, as_admin, watch.replace("fargpu top", "fargpu top --once"),
            policy)
        told = re.findall(r"^# (\d+)$", student + again, re.M)
        self.assertEqual(re.findall(r"^(\d+)$", done.stdout, re.M), told)
        for words in ("may have 4.0 GiB", "try later or wait with --wait"):
            self.assertIn(words, student + again)
            self.assertIn(words, done.stderr)
        self.assertEqual((len(told), done.stdout.count("PASSED")), (2, 2))
        self.assertIn("exclusive, turns of", done.stdout)


if __name__ == "__main__":
    unittest.main()
