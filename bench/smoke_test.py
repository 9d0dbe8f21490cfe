"""The benchmark works: it runs to its end on the software GPU."""

import json
import os
import shutil
import sys
import unittest

from goals import HERE, UNPUBLISHED, Goals
from machine import Machine, Transport
from on_softgpu import BUILD, OnSoftgpu


class Smoke(OnSoftgpu):
    def test_every_row_has_a_figure_or_a_reason(self):
        done = self.bench("--tiny", "--rounds", "1", "--rtt", "1", "control", "data", "S1", "S2", "G1", "G2", "G3")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("adds", done.stdout)  # what the proxy costs
        found = self.results()
        for key, goal in Goals().goals.items():
            if Goals().rows[goal.row]["group"] in ("control", "data") or goal.row in ("S1", "S2", "G1", "G2", "G3"):
                result = found[key]
                if result["value"] is None:
                    self.assertNotEqual(goal.unmeasured, UNPUBLISHED, result)
                    self.assertEqual((result["note"], result["mark"]), (goal.why_missing(), "not measured yet"), key)
        # What does not depend on time.
        for case in ("idle synchronise", "attributes", "errors", "capture state", "alloc and free"):
            self.assertEqual(found["L7", "tcp", case]["value"], 0)
        self.assertEqual(found["L6", "tcp", ""]["value"], 1)
        self.assertEqual(found["S2", "tcp", ""]["value"], 0)
        self.assertEqual(found["G3", "tcp", "round trips"]["value"], 0)
        self.assertGreater(found["L3", "tcp+1", "blocking"]["detail"]["T"], 1e-3)  # the proxy delays
        with open(os.path.join(self.folder.name, "results.html")) as page:
            self.assertIn("<svg", page.read())

        # A later run takes the figures over, and says of what it has none.
        merged = self.bench("--report", "--merge", os.path.join(self.folder.name, "results.json"))
        self.assertEqual(merged.returncode, 0, merged.stdout)
        again = self.results()
        self.assertEqual(again["L8", "tcp", ""], found["L8", "tcp", ""])

    def test_calls_and_copies_are_measured_in_several_sets_of_processes(self):
        done = self.bench("--tiny", "--rounds", "2", "--processes", "2", "--rtt", "none", "L1", "L4", "L6", "B1", "B4")
        self.assertEqual(done.returncode, 0, done.stdout)
        found = self.results()
        for key in (("L1", "tcp", ""), ("L1", "shm", ""), ("L4", "shm", ""), ("L6", "shm", ""), ("B1", "tcp", "k=4"),
                    ("B4", "shm", "")):
            self.assertEqual(len(found[key]["rounds"]), 4, found[key])

    @unittest.skipUnless(os.path.exists(os.path.join(BUILD, "lib", "libfargpu-ucx.so")), "built without UCX")
    @unittest.skipUnless(shutil.which("ucx_perftest"), "there is no ucx_perftest (ucx-utils)")
    def test_by_ucx(self):
        done = self.bench("--tiny", "--rounds", "1", "--rtt", "none", "--transports", "ucx", "R1", "R2", "L3", "B8")
        self.assertEqual(done.returncode, 0, done.stdout)
        found = self.results()
        for key in (("R1", "ucx", ""), ("R2", "ucx", "TCP"), ("R2", "ucx", "shared memory"), ("L3", "ucx", "blocking"),
                    ("B8", "ucx", "HtoD"), ("B8", "ucx", "DtoH")):
            self.assertIsNotNone(found[key]["value"], found[key])
        self.assertEqual(found["B8", "ucx", "HtoD"]["mark"], "reported")
        self.assertGreater(found["R1", "ucx", ""]["detail"]["put GB/s"], 0)

    def test_two_builds_take_turns(self):
        old, used = (os.path.join(self.folder.name, name) for name in ("old", "used"))
        os.makedirs(os.path.join(old, "bin"))
        for name in ("fargpu", "fargpud"):
            with open(os.path.join(old, "bin", name), "w",
                      opener=lambda path, flags: os.open(path, flags, 0o755)) as script:
                script.write(f'#!/bin/sh\necho {name} >> {used}\nexec {os.path.join(BUILD, "bin", name)} "$@"\n')
        rows = ["L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10"]
        done = self.bench("--tiny", "--rounds", "2", "--rtt", "none", "--against", old, *rows)
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(used) as file:
            # broker and clients are those of the other build
            self.assertEqual(set(file.read().split()), {"fargpu", "fargpud"})
        found = self.results()
        self.assertEqual({on for _, on, _ in found}, {"tcp", "shm"})
        with open(os.path.join(self.folder.name, "compared.json")) as file:
            pairs = {(pair["row"], pair["on"], pair["case"]): pair for pair in json.load(file)["compared"]}
        self.assertEqual(set(pairs), {key for key, goal in Goals().goals.items() if goal.row in rows})
        for key, pair in pairs.items():
            self.assertEqual((pair["note"], pair["new"]), ("", found[key]["value"]), key)
        for key in (("L1", "tcp", ""), ("L3", "tcp", "spinning"), ("L4", "shm", ""), ("L6", "shm", "")):
            self.assertEqual(len(pairs[key]["ratios"]), 2, key)
        self.assertEqual((pairs["L8", "tcp", ""]["old"], pairs["L8", "tcp", ""]["worse"]),
                         (pairs["L8", "tcp", ""]["new"], False))
        self.assertIn("--against compares rows of control and programs alone",
                      self.bench("--against", old, "B1").stdout)

    def test_the_proxy_delays_and_paces(self):
        machine = Machine(BUILD, self.folder.name)
        self.addCleanup(machine.close)
        sockets = machine.socket_server()
        for proxy, least_ping, least_stream in ((machine.proxy(sockets, 0.01), 0.01, 0.01),
                                                (machine.proxy(sockets, 0.01, 10), 0.01, 0.11)):
            with machine.plain(Transport("", 0, "", tuple(proxy.split(":")))) as plain:
                self.assertGreaterEqual(plain.ask("pingpong", count=5, bytes=64, spin=0)["seconds"], least_ping)
                for direction in ("htod", "dtoh"):
                    self.assertGreaterEqual(plain.ask("stream", count=1, streams=1, bytes=1000000,
                                                      direction=direction)["copy"], least_stream)

    def test_what_there_is_not(self):
        done = self.bench("L99")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no group or row 'L99'", done.stdout)
        done = self.bench("--turn", "0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("turns and weights are more than 0", done.stdout)


if __name__ == "__main__":
    unittest.main()
