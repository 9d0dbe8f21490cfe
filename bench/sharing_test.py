"""Every row of tenants that share a device has a figure, on the software GPU, or a reason."""

import os
import unittest

from goals import Goals
from on_softgpu import OnSoftgpu


class Sharing(OnSoftgpu):
    # Of these the software GPU has no figure: memory of processes is each one's own there, and no NVML tells of it.
    WITHOUT = {("S5", "tcp", ""), ("Q1", "tcp", "the driver's own")}

    def measured(self, *rows):
        done = self.bench("--tiny", "--rounds", "1", "--rtt", "none", *rows)
        self.assertEqual(done.returncode, 0, done.stdout)
        found = self.results()
        for key, goal in Goals().goals.items():
            if goal.row not in rows or goal.unmeasured:
                continue
            if key in self.WITHOUT:
                self.assertIn("no nvidia-smi", found[key]["note"])
            else:
                self.assertIsNotNone(found[key]["value"], f"{key}: {found[key]['note']}")
        return found

    def test_turns(self):
        found = self.measured("Q2", "Q3", "P1", "P2", "P3")
        self.assertGreater(len(found["P2", "tcp", ""]["detail"]["series"]), 2)
        self.assertIsNotNone(found["P3", "slices", ""]["value"])
        self.assertIn("MPS", found["P3", "mps", ""]["note"])
        with open(os.path.join(self.folder.name, "results.html")) as page:
            self.assertIn("<polyline", page.read())

    def test_policies_and_loads(self):
        found = self.measured("Q4", "Q5")
        for policy in ("fair", "fixed", "exclusive"):
            self.assertGreater(found["Q4", "tcp", f"four loads, {policy}, Jain"]["value"], 0.25)
        self.assertIsNotNone(found["Q4", "slices", "four loads, Jain"]["value"])

    def test_memory(self):
        found = self.measured("S3", "S5", "Q1")
        self.assertEqual(found["S3", "tcp", ""]["value"], 3)
        self.assertEqual(found["Q1", "tcp", "explicit"]["value"], 0)
        self.assertLess(found["Q1", "tcp", "explicit"]["detail"]["left of it, bytes"], 4 << 20)  # it tried
        self.assertLess(found["Q1", "tcp", "cuMemGetInfo, off by"]["value"], 4)

    def test_faults(self):
        found = self.measured("F1", "F2")
        for fault in ("illegal address", "kill -9", "hang"):
            self.assertEqual(found["F1", "tcp", f"{fault}, disturbed"]["value"], 0)


if __name__ == "__main__":
    unittest.main()
