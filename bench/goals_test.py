"""The goals are told alike in goals.toml and goals.md, and marks follow from them; what is published follows from the
figures."""

import dataclasses
import importlib.machinery
import importlib.util
import os
import statistics
import sys
import tempfile
import unittest

import against
from goals import HERE, UNPUBLISHED, Goal, Goals
from results import Results


def script(name):
    """A module of a script without an ending."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(HERE, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Published(unittest.TestCase):
    def test_table_and_pictures_are_those_of_the_figures(self):
        for name, text in script("publish").published([os.path.join(HERE, "results.json")]).items():
            with open(os.path.join(HERE, name)) as file:
                self.assertEqual(file.read(), text, f"{name}: run bench/publish")


    def test_every_goal_has_a_figure_or_a_reason(self):
        results, goals = Results(Goals()), Goals()
        results.merge(os.path.join(HERE, "results.json"))
        figures = {(result.row, result.on, result.case)
                   for result in results.found.values() if result.value is not None}
        for key, goal in goals.goals.items():
            self.assertNotEqual(key in figures, bool(goal.unmeasured),
                                f"{key}: a figure in results.json, or a reason in goals.toml")
        self.assertEqual({name for name in goals.rows} - {row for row, _, _ in goals.goals}, set(),
                         "rows without goals")

    def test_what_is_not_measured_says_so(self):
        results = Results(Goals()).with_unmeasured()
        self.assertIn("| not measured yet | sessions do not migrate |", results.markdown())
        self.assertIn("not measured yet: sessions do not migrate", Goals().markdown())
        self.assertIn("not measured yet: sessions do not migrate", results.table())
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.html")
            results.page(path, {})
            with open(path) as page:
                self.assertIn("not measured yet: sessions do not migrate", page.read())
            with open(path, "w") as file:
                file.write(results.json({}))
            again = Results(Goals())
            again.merge(path)
            self.assertEqual(again.found, {})  # a reason is said by the goals, not by earlier runs

    def test_what_a_run_left_out_keeps_its_reason(self):
        results = Results(Goals())
        results.fill({"programs", "sessions"}, {"W1", "M2"})
        self.assertEqual([results.found[key].mark for key in ("W1  tcp", "M2  tcp")],
                         ["not run", "not measured yet"])
        self.assertIn("M2", results.with_unmeasured().markdown())
        goals = Goals()
        goals.goals["W1", "tcp", ""] = dataclasses.replace(goals.goals["W1", "tcp", ""], unmeasured=UNPUBLISHED)
        results = Results(goals)
        results.fill({"programs"}, {"W1"})
        self.assertEqual(results.found["W1  tcp"].note, "not run: this run did not include it")
        self.assertEqual(results.with_unmeasured().found["W1  tcp"].note, f"not measured yet: {UNPUBLISHED}")

    def test_earlier_figures_are_marked_by_the_goals_of_today(self):
        results = Results(Goals())
        results.add("L4", "shm", 1.9)
        self.assertEqual(results.found["L4  shm"].mark, "floor")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            with open(path, "w") as file:
                file.write(results.json({}).replace('"mark": "floor", "floor": 2', '"mark": "goal", "floor": 4'))
            again = Results(Goals())
            again.merge(path)
            self.assertEqual((again.found["L4  shm"].mark, again.found["L4  shm"].floor), ("floor", 2))
            with open(path, "w") as file:
                file.write(results.json({}).replace('"unit": "us"', '"unit": "ratio"'))
            with self.assertRaisesRegex(ValueError, "L4  shm is in ratio, and its goal in us"):
                again.merge(path)


class Builds(unittest.TestCase):
    def compared(self, row, on, case, old, new):
        results = Results(Goals())
        for build, rounds in (("old ", old), ("", new)):
            results.add(row, build + on, case=case, rounds=rounds)
        pairs = against.taken_from(results)
        self.assertEqual([r.on for r in results.found.values()], [on])
        return pairs[0]

    def test_worse_by_a_twentieth_is_marked(self):
        self.assertTrue(self.compared("L1", "tcp", "", [0.1, 0.1, 0.2], [0.106, 0.11, 0.2]).worse)
        self.assertFalse(self.compared("L1", "tcp", "", [0.1, 0.1, 0.2], [0.104, 0.11, 0.2]).worse)
        self.assertTrue(self.compared("L2", "shm", "", [1.0], [0.94]).worse)
        self.assertFalse(self.compared("L2", "shm", "", [1.0], [2.0]).worse)
        self.assertTrue(self.compared("L7", "tcp", "errors", [0.0], [0.01]).worse)
        self.assertFalse(self.compared("L7", "tcp", "errors", [0.0], [0.0]).worse)
        self.assertTrue(self.compared("W2", "tcp+1", "", [-1.0], [1.0]).worse)

    def test_the_ratio_is_that_of_rounds(self):
        pair = self.compared("L1", "tcp", "", [0.1, 0.2], [0.1, 0.3])
        self.assertEqual((pair.old, pair.new, [round(r, 6) for r in pair.ratios]),
                         (statistics.median([0.1, 0.2]), 0.2, [1.0, 1.5]))
        self.assertIn("more than 5 % worse: L1 tcp of 1", against.table([pair], 1))

    def test_a_build_without_a_figure_says_why(self):
        results = Results(Goals())
        results.add("L4", "old shm", note="failed: no answer")
        results.add("L4", "shm", 1.0)
        results.add("L8", "old tcp", 100)
        pairs = against.taken_from(results)
        self.assertEqual([(pair.verdict, pair.worse) for pair in pairs],
                         [("old: failed: no answer", False), ("new: not measured", True)])


class TheGoals(unittest.TestCase):
    def test_the_table_is_that_of_the_file(self):
        with open(os.path.join(HERE, "goals.md")) as table:
            self.assertEqual(table.read(), Goals().markdown(), "run bench/goals.py --renew")

    def test_bounds_get_harder(self):
        for goal in Goals().goals.values():
            bounds = [b for b in (goal.floor, goal.goal, goal.stretch) if b is not None]
            self.assertEqual(bounds, sorted(bounds, reverse=goal.better == "lower"), goal)

    def test_marks(self):
        lower = Goal("L1", "tcp", better="lower", floor=1.0, goal=0.25, stretch=0.1)
        self.assertEqual([lower.mark(v) for v in (1.5, 1.0, 0.25, 0.05)], ["below floor", "floor", "goal", "stretch"])
        higher = Goal("L2", "tcp", better="higher", floor=0.7, goal=0.95)
        self.assertEqual([higher.mark(v) for v in (0.5, 0.7, 3.0)], ["below floor", "floor", "goal"])
        self.assertEqual(Goal("B3", "tcp", better="higher").mark(0.1), "reported")


if __name__ == "__main__":
    unittest.main()
