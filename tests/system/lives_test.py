"""What programs do with their own life: fork, exec, exit, die, unload; and calls that come when all is over."""

import unittest

from rig import SystemTest, paths, wait_until
from rig.process import run
from rig.wire import deaf_host

NOT_INITIALIZED, DEINITIALIZED = 3, 4


class Lives(SystemTest):
    def setUp(self):
        self.host = self.broker()

    def lives(self, scenario, code=0, sessions=1, program="lives", env=None):
        done = run([paths.PROGRAMS / program, scenario],
                   env={"FARGPU_POOL": self.host.pool, "LD_LIBRARY_PATH": paths.LIBRARIES, **(env or {})})
        self.assertEqual((done.code, done.err), (code, ""), done.out)
        wait_until(lambda: len(self.host.logged("session ended")) == sessions, "the end of every session")
        self.assertEqual(len(self.host.logged("session started")), sessions)
        self.assertEqual(self.host.sessions(), [])
        self.reasons = [event["reason"] for event in self.host.logged("session ended")]
        self.assertFalse(self.host.logged("worker died"))
        return done.out.splitlines()

    def test_a_child_has_no_session_and_leaves_its_parents_alone(self):
        self.assertEqual(self.lives("fork-after"), [
            "parent 0", f"child {NOT_INITIALIZED} ", f"grandchild {NOT_INITIALIZED} ", "child ended with 0",
            "child ended with 7",
            "parent 0", "child ended by signal 6", "parent 0"])
        self.assertEqual(self.reasons, ["the client left"])

    def test_a_child_from_before_may_have_its_own(self):
        self.assertEqual(self.lives("fork-before", sessions=2), [
            "child 0 0", "child ended with 0", "parent 0 0", f"child {NOT_INITIALIZED} ", "child ended with 0",
            "parent 0"])

    def test_children_in_the_middle_of_calls(self):
        self.assertEqual(self.lives("fork-busy"), ["parent 0", "bad children 0, failures 0", "parent 0"])

    def test_programs_that_are_started_inherit_nothing(self):
        self.assertEqual(self.lives("spawn"), ["parent 0", "0", "child ended with 1", "parent 0", "parent 0"])

    def test_programs_that_are_started_meanwhile_neither(self):
        with deaf_host() as pool:
            done = run([paths.PROGRAMS / "lives", "spawn-connecting"],
                       env={"FARGPU_POOL": pool, "LD_LIBRARY_PATH": paths.LIBRARIES})
        self.assertEqual((done.code, done.out), (0, "0\ninit 802\n"))
        self.assertIn("timed out", done.err)

    def test_a_child_that_is_forked_meanwhile_does_not_wait_for_it(self):
        with deaf_host() as pool:
            done = run([paths.PROGRAMS / "lives", "fork-connecting"],
                       env={"FARGPU_POOL": pool, "LD_LIBRARY_PATH": paths.LIBRARIES})
        self.assertEqual((done.code, done.out), (0, "child 3\ninit 802\n"))

    def test_exec_ends_the_session(self):
        self.assertEqual(self.lives("exec", sessions=2), ["before 0 0", "after 0 0"])
        self.assertEqual(sorted(reason.split(" ", 1)[1] for reason in self.reasons),
                         ["client left", "closed the connection"])

    def test_exec_of_a_program_whose_system_calls_are_watched(self):
        self.assertEqual(self.lives("exec-watched", sessions=2),
                         ["before 0 0", "before 0 0 read", "after 0 0", "after 0 read"])

    def test_the_exit_code_is_the_programs(self):
        self.assertEqual(self.lives("exit-code", code=23), ["main 0"])
        self.assertEqual(self.reasons, ["the client left"])

    def test_calls_after_the_end(self):
        """Handlers and destructors that were there before cuInit run after the library's end; those from later still
        have a session."""
        self.assertEqual(self.lives("late-calls"),
                         ["main 0", "early 0", f"destructor {DEINITIALIZED} ", f"atexit {DEINITIALIZED} "])

    def test_exit_while_threads_are_busy(self):
        for _ in range(5):
            done = run([paths.PROGRAMS / "lives", "threads"],
                       env={"FARGPU_POOL": self.host.pool, "LD_LIBRARY_PATH": paths.LIBRARIES})
            self.assertEqual((done.code, done.out, done.err), (5, "main 0\n", ""))
        wait_until(lambda: not self.host.sessions(), "no session left")

    def test_exit_without_a_word(self):
        self.assertEqual(self.lives("quick-exit", code=6), ["main 0"])
        self.assertIn("closed the connection", self.reasons[0])

    def test_a_crash(self):
        no_report = {"ASAN_OPTIONS": "handle_segv=0:detect_leaks=0", "TSAN_OPTIONS": "handle_segv=0"}
        self.assertEqual(self.lives("crash", code=-11, env=no_report), ["main 0"])

    def test_threads_that_end(self):
        self.assertEqual(self.lives("thread-ends"), ["main 0", "main 0"])

    def test_threads_that_are_cancelled_in_the_middle_of_calls(self):
        self.assertEqual(self.lives("threads-cancelled"), ["main 0", "main 0 0"])

    def test_unloading_the_library(self):
        env = {"FARGPU_POOL": self.host.pool, "LD_LIBRARY_PATH": paths.LIBRARIES}
        done = run([paths.PROGRAMS / "unloading"], env=env)
        self.assertEqual((done.code, done.out, done.err), (0, "init 0\nunloaded 0\ncount 0 2\n", ""))


if __name__ == "__main__":
    unittest.main()
