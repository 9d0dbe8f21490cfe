"""A pool of hosts by a registry, whose parts die again and again: `pool_faults` for a short while."""

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from rig.process import run


@unittest.skipUnless(shutil.which("etcd"), "there is no etcd on this machine (package etcd-server)")
class PoolFaults(unittest.TestCase):
    def test_nothing_is_granted_twice_lost_or_left(self):
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder, "result")
            done = run([sys.executable, Path(__file__).with_name("pool_faults"), "--minutes", "0.4", "--hosts", "3",
                        "--devices", "2", "--clients", "10", "--out", result], seconds=240)
            self.assertEqual(done.code, 0, done.out + done.err)
            found = json.loads(result.read_text())
        self.assertGreater(found["finished"], 3, done.out)
        self.assertGreater(sum(found["faults"].values()), 3, done.out)


if __name__ == "__main__":
    unittest.main()
