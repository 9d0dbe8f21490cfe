"""The benchmark works: it runs to its end on the software GPU."""

import json
import os
import sys
import unittest

import against
import group_programs
from goals import HERE, UNPUBLISHED, Goals
from machine import Machine, Transport
from on_softgpu import BUILD, SOFTGPU, OnSoftgpu
from results import Results
from rounds import TINY, Bench


class Smoke(OnSoftgpu):
    def test_every_row_has_a_figure_or_a_reason(self):
        done = self.bench("--tiny", "--rounds", "1", "--rtt", "1", "control", "data", "S1", "S2")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("adds", done.stdout)  # what the proxy costs
        found = self.results()
        for key, goal in Goals().goals.items():
            if Goals().rows[goal.row]["group"] in ("control", "data") or goal.row in ("S1", "S2"):
                result = found[key]
                if result["value"] is None:
                    self.assertNotEqual(goal.unmeasured, UNPUBLISHED, result)
                    self.assertEqual((result["note"], result["mark"]), (goal.why_missing(), "not measured yet"), key)
        # What does not depend on time.
        for case in ("idle synchronise", "attributes", "errors", "capture state", "alloc and free"):
            self.assertEqual(found["L7", "tcp", case]["value"], 0)
        self.assertEqual(found["L6", "tcp", ""]["value"], 1)
        self.assertEqual(found["S2", "tcp", ""]["value"], 0)
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
        for key in (("L1", "tcp", ""), ("L1", "shm", ""), ("L4", "shm", ""), ("L6", "shm", ""), ("B1", "tcp", "k=4"), ("B4", "shm", "")):
            self.assertEqual(len(found[key]["rounds"]), 4, found[key])

    def test_two_builds_take_turns(self):
        old, used = (os.path.join(self.folder.name, name) for name in ("old", "used"))
        os.makedirs(os.path.join(old, "bin"))
        for name in ("fargpu", "fargpud"):
            with open(os.path.join(old, "bin", name), "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as script:
                script.write(f'#!/bin/sh\necho {name} >> {used}\nexec {os.path.join(BUILD, "bin", name)} "$@"\n')
        rows = ["L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10"]
        done = self.bench("--tiny", "--rounds", "2", "--rtt", "none", "--against", old, *rows)
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(used) as file:
            self.assertEqual(set(file.read().split()), {"fargpu", "fargpud"})  # broker and clients are those of the other build
        found = self.results()
        self.assertEqual({on for _, on, _ in found}, {"tcp", "shm"})
        with open(os.path.join(self.folder.name, "compared.json")) as file:
            pairs = {(pair["row"], pair["on"], pair["case"]): pair for pair in json.load(file)["compared"]}
        self.assertEqual(set(pairs), {key for key, goal in Goals().goals.items() if goal.row in rows})
        for key, pair in pairs.items():
            self.assertEqual((pair["note"], pair["new"]), ("", found[key]["value"]), key)
        for key in (("L1", "tcp", ""), ("L3", "tcp", "spinning"), ("L4", "shm", ""), ("L6", "shm", "")):
            self.assertEqual(len(pairs[key]["ratios"]), 2, key)
        self.assertEqual((pairs["L8", "tcp", ""]["old"], pairs["L8", "tcp", ""]["worse"]), (pairs["L8", "tcp", ""]["new"], False))
        self.assertIn("--against compares rows of control and programs alone", self.bench("--against", old, "B1").stdout)

    def test_programs_take_turns(self):
        os.environ.update(SOFTGPU)
        machine = Machine(BUILD, self.folder.name, against=BUILD)
        self.addCleanup(machine.close)
        results = Results(Goals())
        bench = Bench(machine, results, TINY, 2, [0.1, 1, 5, 30], None, set(), processes=2)
        program = next(one for one in group_programs.PROGRAMS if one.names == ("W2",))
        group_programs.workload(bench, program, [sys.executable, os.path.join(HERE, "stand_in.py"), "W2"])
        pairs = {pair.on: pair for pair in against.taken_from(results)}
        found = {r.on: r for r in results.found.values()}
        self.assertEqual(set(pairs), set(found))
        for on in ("tcp", "shm"):
            self.assertEqual(len(pairs[on].ratios), 4, pairs[on])
        delayed = ("tcp+0.1", "tcp+1", "tcp+5", "tcp+30")
        self.assertEqual(set(found), {"tcp", "shm", *delayed})
        for result in found.values():
            self.assertEqual(result.detail["a step's round trips"], 1.0)
            self.assertEqual(result.detail["first 8 values"], "equal")
            self.assertEqual(len(result.rounds), 4 if result.unit in ("ratio", "RTTs") else 1)
        self.assertEqual([found[on].unit for on in delayed], ["RTTs"] * 4)
        for rtt in (0.1, 1, 5, 30):  # the one round trip of a step, whatever else the machine has to do
            self.assertGreaterEqual(found[f"tcp+{rtt}"].detail["T"], rtt / 1000)
        # A busy machine's steps differ by milliseconds, which shorter ones would take for round trips.
        self.assertTrue(0.5 < found["tcp+30"].value < 5, found["tcp+30"])
        self.assertEqual([found[on].mark for on in ("tcp+5", "tcp+30")], ["reported"] * 2)  # which have no goals

    def test_workloads_of_one_process_take_turns(self):
        os.environ.update(SOFTGPU)
        machine = Machine(BUILD, self.folder.name)
        self.addCleanup(machine.close)
        results = Results(Goals())
        bench = Bench(machine, results, TINY, 2, [1, 5], None, set())
        program = next(one for one in group_programs.PROGRAMS if "W11" in one.names)
        group_programs.workload(bench, program, [sys.executable, os.path.join(HERE, "stand_in.py"), *program.names[:-1], "none"])
        for name in program.names[:-1]:
            row, case = group_programs.row_of(name)
            for on in ("tcp", "tcp+1", "shm"):
                result = results.found[f"{row} {case} {on}"]
                self.assertEqual((len(result.rounds), result.detail["first 8 values"]), (2, "equal"), result)
                self.assertEqual("bytes / Sk" in result.detail, row in ("W11", "W12") and on != "shm", result)
        local, remote, sockets = (results.found["W11  tcp"].detail[name] for name in ("N", "T", "bytes / Sk"))
        self.assertLess(results.found["W11  tcp"].value, remote / max(local, sockets) * 3)
        self.assertNotIn("W12 state_dict tcp+5", results.found)
        self.assertIn("W15 nonzero tcp+5", results.found)
        self.assertEqual(results.found["W15 nonzero tcp"].unit, "RTTs")
        for on in ("tcp", "tcp+1", "tcp+5", "shm"):  # a workload that does not begin says why, and leaves the others
            self.assertIn("failed: local: LookupError: there is no workload", results.found[f"W15 any {on}"].note)

    def test_every_program_has_a_goal_and_every_goal_a_program(self):
        named = {group_programs.row_of(name) for program in group_programs.PROGRAMS for name in program.names}
        goals = {(goal.row, goal.case) for goal in Goals().goals.values() if goal.row.startswith("W") and goal.row != "W16"}
        self.assertEqual(named, goals)

    def test_first_values_are_compared_with_the_local_ones_and_those_among_themselves(self):
        same, other = {"local": [1.0], "tcp": [1.0]}, {"local": [1.0], "tcp": [2.0]}
        for sets, expected in (([same, same], "equal"), ([other], "different"), ([same, other], "different, local ones equal"),
                               ([other, {"local": [3.0], "tcp": [3.0]}], "different, local ones too")):
            self.assertEqual(group_programs.compared(sets, "tcp"), expected)

    def test_the_proxy_delays_and_paces(self):
        machine = Machine(BUILD, self.folder.name)
        self.addCleanup(machine.close)
        sockets = machine.socket_server()
        for proxy, least_ping, least_stream in ((machine.proxy(sockets, 0.01), 0.01, 0.01), (machine.proxy(sockets, 0.01, 10), 0.01, 0.11)):
            with machine.plain(Transport("", 0, "", tuple(proxy.split(":")))) as plain:
                self.assertGreaterEqual(plain.ask("pingpong", count=5, bytes=64, spin=0)["seconds"], least_ping)
                for direction in ("htod", "dtoh"):
                    self.assertGreaterEqual(plain.ask("stream", count=1, streams=1, bytes=1000000, direction=direction)["copy"], least_stream)

    def test_what_there_is_not(self):
        done = self.bench("L99")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no group or row 'L99'", done.stdout)
        done = self.bench("--turn", "0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("turns are more than 0", done.stdout)


if __name__ == "__main__":
    unittest.main()
