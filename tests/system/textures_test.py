"""Textures and surfaces that kernels really read and write: on the software GPU, through a broker and a worker."""

import re
import unittest

from rig import SystemTest, fargpu, paths


class Textures(SystemTest):
    def setUp(self):
        super().setUp()
        self.pool = self.broker(driver=paths.SOFTWARE_GPU).pool

    def run_remotely(self, *command):
        return fargpu("run", "--", *command, pool=self.pool, env={"LD_PRELOAD": paths.SANITIZER_RUNTIME or None})

    def test_runtime_api(self):
        done = self.run_remotely(paths.PROGRAMS / "textures")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(done.out.splitlines(), ["picture: 3840", "turned: 3840", "volume: 23040",
                                                 "through pinned memory: 3840", "levels: 8",
                                                 "plain memory: 3840"])

    def test_driver_api(self):
        """What the software GPU itself is tested by."""
        cases = re.findall(r"^CASE\w*\((\w+)", (paths.SOURCE / "tests" / "kernels" / "kernels_texture.cu").read_text(),
                           re.M)
        self.assertGreater(len(cases), 8)
        for case in cases:
            with self.subTest(case):
                done = self.run_remotely(paths.KERNEL_PROGRAMS / "kernels_texture", case)
                self.assertEqual((done.code, done.out, done.err), (0, f"PASS {case}\n", ""))


if __name__ == "__main__":
    unittest.main()
