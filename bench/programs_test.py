"""Programs take turns, by a program that answers as they do where there is no PyTorch, on the software GPU."""

import json
import os
import sys
import unittest

import against
import group_programs
import program_steps
import programs_crowd
import programs_known
import programs_paced
import sessions_resuming
from goals import HERE, Goals
from machine import Machine
from on_softgpu import BUILD, SOFTGPU, OnSoftgpu
from results import Results
from rounds import TINY, Bench


STAND_IN = [sys.executable, os.path.join(HERE, "stand_in.py")]


class Programs(OnSoftgpu):
    def machine(self, **more):
        os.environ.update(SOFTGPU)
        machine = Machine(BUILD, self.folder.name, **more)
        self.addCleanup(machine.close)
        return machine

    def test_programs_take_turns(self):
        machine = self.machine(against=BUILD)
        results = Results(Goals())
        bench = Bench(machine, results, TINY, 2, [0.1, 1, 5, 30], None, set(), processes=2)
        program = next(one for one in group_programs.PROGRAMS if one.names == ("W2",))
        group_programs.workload(bench, program, STAND_IN)
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
        self.assertLess(found["tcp+30"].value, 5, found["tcp+30"])
        self.assertLess(found["tcp+30"].detail["T"] / found["tcp+30"].detail["round trip"], 5, found["tcp+30"])
        self.assertEqual([found[on].mark for on in ("tcp+5", "tcp+30")], ["reported"] * 2)  # which have no goals

    def test_workloads_of_one_process_take_turns(self):
        machine = self.machine()
        results = Results(Goals())
        bench = Bench(machine, results, TINY, 2, [1, 5], None, set())
        program = next(one for one in group_programs.PROGRAMS if "W11" in one.names)
        group_programs.workload(bench, program, STAND_IN)
        for name in program.names[:-1]:
            row, case = program_steps.row_of(name)
            for on in ("tcp", "tcp+1", "shm"):
                result = results.found[f"{row} {case} {on}"]
                self.assertEqual((len(result.rounds), result.detail["first 8 values"]), (2, "equal"), result)
                self.assertEqual("bytes / Sk" in result.detail, row in ("W11", "W12") and on != "shm", result)
        # for it is beside N and more
        self.assertLess(results.found["W11  tcp"].value, float(results.found["W11  tcp"].detail["T / N"]))
        self.assertNotIn("W12 state_dict tcp+5", results.found)
        self.assertIn("W15 nonzero tcp+5", results.found)
        self.assertEqual(results.found["W15 nonzero tcp"].unit, "RTTs")
        for on in ("tcp", "tcp+1", "tcp+5", "shm"):  # a workload that does not begin says why, and leaves the others
            self.assertIn("failed: local: LookupError: there is no workload", results.found[f"W15 any {on}"].note)

    def test_a_crowd_and_a_paced_line(self):
        machine = self.machine()
        results = Results(Goals())
        bench = Bench(machine, results, TINY, 2, [], None, set())
        programs_crowd.run(bench, STAND_IN)
        programs_paced.run(bench, STAND_IN)
        self.assertEqual(len(results.found["L14  tcp"].rounds), 2)
        for goal in Goals().goals.values():
            if goal.row == "B13":
                result = results.found[f"B13 {goal.case} {goal.on}"]
                self.assertEqual((len(result.rounds), result.detail["first values"]), (2, "equal"), result)
                rtt = float(goal.on.removeprefix("tcp+")) / 1000
                self.assertGreaterEqual(result.detail["T"], rtt)
                self.assertIn("%", result.detail["line loses"])

    def test_what_it_costs_that_a_session_can_be_resumed(self):
        results = Results(Goals())
        sessions_resuming.run(Bench(self.machine(), results, TINY, 1, [], None, set()), STAND_IN)
        step, memory = (results.found[f"F5 {case} tcp"] for case in ("step", "memory"))
        self.assertEqual((step.unit, len(step.rounds), memory.unit, len(memory.rounds)), ("%", 4, "MiB", 2))
        self.assertLess(abs(memory.value), 512)
        for name in sessions_resuming.WORKLOADS:
            self.assertGreater(step.detail[f"{name} s"], 0)

    def test_weights_that_the_host_has_had_before(self):
        machine = self.machine()
        results = Results(Goals())
        programs_known.run(Bench(machine, results, TINY, 1, [], None, set()),
                           [sys.executable, os.path.join(HERE, "stand_in_load.py")], ["ln"])
        for gb, rate in programs_known.RATES.items():
            for suffix in ("", ", pickled"):
                sent = results.found[f"W16 bytes on the wire{suffix}, {gb} Gb/s tcp"]
                self.assertEqual((sent.unit, len(sent.rounds), sent.detail["values"]), ("%", 1, "equal"), sent)
                # All of it, but for what a busy machine did not come to keep.
                self.assertLess(sent.value, 50, sent)
                self.assertIn(f"W16 time{suffix}, {gb} Gb/s tcp", results.found)
            first = results.found[f"W16 first load, {gb} Gb/s tcp"]
            self.assertGreater(first.detail["T, load without"], 64e6 / (rate * 1e6))
            # Nothing of the weights is known to a host that has nothing: no block is another one.
            self.assertGreater(float(first.detail["% sent, first load"].split()[0]), 95)

    def test_weights_in_a_file_are_safetensors(self):
        path = program_steps.checkpoint(self.folder.name, 100_000_000)
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        ends = [tensor["data_offsets"] for tensor in header.values()]
        self.assertEqual((len(header), ends[0][0], ends[-1][1] + 8 + size), (1, 0, os.path.getsize(path)))
        self.assertEqual((8 + size) % 8, 0)

    def test_every_program_has_a_goal_and_every_goal_a_program(self):
        named = {program_steps.row_of(name) for program in group_programs.PROGRAMS for name in program.names}
        goals = {(goal.row, goal.case) for goal in Goals().goals.values() if goal.row.startswith("W")
                 and goal.row != "W16"}  # each of its loads is a program
        self.assertEqual(named, goals)

    def test_first_values_are_compared_with_the_local_ones_and_those_among_themselves(self):
        same, other = {"local": [1.0], "tcp": [1.0]}, {"local": [1.0], "tcp": [2.0]}
        for sets, expected in (([same, same], "equal"), ([other], "different"),
                               ([same, other], "different, local ones equal"),
                               ([other, {"local": [3.0], "tcp": [3.0]}], "different, local ones too")):
            self.assertEqual(program_steps.compared(sets, "tcp"), expected)


if __name__ == "__main__":
    unittest.main()
