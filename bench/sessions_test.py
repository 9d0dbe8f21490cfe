"""Sessions that yield and last, on the software GPU: what the benchmark does to them, and that it measures."""

import os
import unittest
import xml.etree.ElementTree
from unittest import mock

import pictures
import sessions_models
from goals import Goals
from machine import Machine
from on_softgpu import BUILD, SOFTGPU, OnSoftgpu
from results import Results
from rounds import TINY, Bench
from tenants import Tenants


class Sessions(OnSoftgpu):
    def measured(self, *rows):
        done = self.bench("--tiny", "--rounds", "1", "--rtt", "none", *rows)
        self.assertEqual(done.returncode, 0, done.stdout)
        found = self.results()
        for key, result in found.items():
            self.assertTrue(result["value"] is not None or result["mark"] == "not measured yet", result)
        return found

    def test_connections_break(self):
        found = self.measured("F3")
        for way in ("", ", by lanes"):
            lost = found["F3", "tcp", f"lost{way}"]
            self.assertEqual((lost["value"], found["F3", "tcp", f"wrong results{way}"]["value"]), (0, 0), lost)
            times = dict(zip(("reset", "new address", "blackhole"), TINY.breaks))
            self.assertEqual({how: lost["detail"][f"{how} times"] for how in times}, times)
            self.assertEqual(len(found["F3", "tcp", f"goes on{way}"]["rounds"]), sum(TINY.breaks))
        for seconds in found["F3", "tcp", "noticed"]["rounds"]:  # by the system's timers: nothing told the ends
            self.assertGreater(seconds, 1)

    def test_brokers_are_replaced(self):
        found = self.measured("F4")
        self.assertEqual(found["F4", "tcp", "lost"]["value"], 0, found["F4", "tcp", "lost"])
        self.assertEqual(len(found["F4", "tcp", "count again after"]["rounds"]), 2)

    def test_sessions_leave_and_return(self):
        found = self.measured("M4", "M5", "M6")
        self.assertEqual(found["M4", "tcp", ""]["detail"]["MiB"], TINY.evicted_mib)

    def test_models_with_more_memory_than_there_is(self):
        shared = os.path.join(self.folder.name, "devices")
        with mock.patch.dict(os.environ, SOFTGPU, FARGPU_SOFTGPU_MEMORY="256MiB", FARGPU_SOFTGPU_SHARED=shared):
            machine = Machine(BUILD, self.folder.name)
            self.addCleanup(machine.close)
            results = Results(Goals())
            bench = Bench(machine, results, TINY, 1, [], None, set())
            self.assertEqual(pictures.models(results), "")
            sessions_models.run(bench, Tenants(bench), ("tenant", "answer"))
        found = {result.case: result for result in results.found.values()}
        self.assertEqual(found["wrong answers"].value, 0, found["wrong answers"])
        asked = sum(len(sessions_models.moments(TINY, number)) for number in range(sessions_models.MODELS))
        warm, cold = (found[f"{kind}, p50"].detail for kind in sessions_models.KINDS)
        self.assertEqual(warm["answers"] + cold["answers"], asked)
        self.assertGreater(cold["evictions meanwhile"], 0)
        self.assertLess(warm["MiB for all"], 5 * warm["MiB each"])
        drawn = xml.etree.ElementTree.fromstring(pictures.models(results))
        self.assertEqual(len(drawn.findall("{*}circle")), asked)


if __name__ == "__main__":
    unittest.main()
