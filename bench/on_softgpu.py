"""Tests of the benchmark: it is run on the software GPU, with so little to measure that the figures mean nothing."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from goals import HERE

BUILD = os.environ.get("FARGPU_BUILD", os.path.join(os.path.dirname(HERE), "build"))
SOFTGPU = {"FARGPU_TEST_DRIVER": os.path.join(BUILD, "server", "softgpu", "libfargpu-softgpu.so"),
           "LD_LIBRARY_PATH": os.path.join(BUILD, "tests", "softgpu", "libcuda")}


class OnSoftgpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def bench(self, *words):
        return subprocess.run([sys.executable, "-B", os.path.join(HERE, "run"), "--stage", BUILD, "--out",
                               self.folder.name, *words],
                              env=dict(os.environ, **SOFTGPU), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=250, check=False)

    def results(self):
        with open(os.path.join(self.folder.name, "results.json")) as file:
            return {(r["row"], r["on"], r["case"]): r for r in json.load(file)["results"]}
