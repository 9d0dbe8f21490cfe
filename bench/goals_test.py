"""The goals are told alike in goals.toml and goals.md, and marks follow from them."""

import os
import unittest

from goals import HERE, Goal, Goals


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
