"""The goals are told alike in goals.toml and goals.md, and marks follow from them; what is published follows from the figures."""

import importlib.machinery
import importlib.util
import os
import sys
import unittest

from goals import HERE, Goal, Goals


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
