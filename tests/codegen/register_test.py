"""The two files that only grow: the opcodes, and the listing of the toolkit."""

import unittest

from rig import GeneratorTest


class Register(GeneratorTest):
    def opcode(self, name):
        lines = [line for line in self.text("spec/opcodes.toml").splitlines() if line.startswith(f'"{name}" = ')]
        self.assertEqual(len(lines), 1, name)
        return int(lines[0].split("number = ")[1].split(",")[0])

    def test_nothing_new_changes_nothing(self):
        before = self.text("spec/opcodes.toml"), self.text("spec/abi/13000.txt")
        self.assertEqual(self.register(), (0, "", ""))
        self.assertEqual(self.register("--toolkit"), (0, "", ""))
        self.assertEqual((self.text("spec/opcodes.toml"), self.text("spec/abi/13000.txt")), before)

    def test_new_calls_get_the_next_numbers(self):
        before = self.text("spec/opcodes.toml")
        self.change("spec/driver.toml", 'symbols = ["cuProfilerStart"]', "symbols = []")
        self.add("spec/driver.toml",
                 '[calls.cuProfilerStart]\nmode = "barrier"\n[operations.profile]\nrequest = "Profile"\n'
                                     'mode = "barrier"\nwhy = "there may be much of it"\n')
        self.assertEqual(self.register(), (0, "opcode for cuProfilerStart\nopcode for profile\n", ""))
        self.assertTrue(self.text("spec/opcodes.toml").startswith(before))
        self.assertEqual((self.opcode("cuProfilerStart"), self.opcode("profile")), (15, 16))
        self.assert_accepted()

    def test_a_removed_call_keeps_its_number(self):
        self.change("spec/box.toml", '[calls.cuBoxGetSize_v2]\nmode = "barrier"\nparams.bytes = { dir = "out" }\n', "")
        self.change("spec/box.toml", '["cuBoxGetSize"]', '["cuBoxGetSize", "cuBoxGetSize_v2"]')
        before = self.text("spec/opcodes.toml")
        self.assertEqual(self.register(), (0, "", ""))
        self.assertEqual(self.text("spec/opcodes.toml"), before)
        self.assert_accepted()
        self.assertNotIn("cuBoxGetSize_v2 = ", self.text("out/opcodes.h"))

    def test_a_changed_shape_stays_wrong_until_renewed(self):
        self.change("spec/box.toml", "optional = true", "optional = false")
        self.assertEqual(self.register(), (0, "", ""))
        self.assertEqual(self.generate()[0], 1)
        self.assertEqual(self.register("--renew", "cuBoxSetWeights"), (0, "opcode for cuBoxSetWeights\n", ""))
        self.assertEqual((self.opcode("cuBoxSetWeights"), self.opcode("cuBoxSetWeights~7")), (15, 7))
        self.assert_accepted()
        self.assertIn("cuBoxSetWeights = 15,", self.text("out/opcodes.h"))

    def test_what_has_no_opcode_is_not_renewed(self):
        before = self.text("spec/opcodes.toml")
        self.assertEqual(self.register("--renew", "cuBoxSetWeight"), (
            1, "", "fargpu codegen stopped:\nopcodes.toml: cuBoxSetWeight: [opcode] has no opcode that could be "
                   "renewed; correct the name "
                   "given to --renew\n"))
        self.assertEqual(self.text("spec/opcodes.toml"), before)

    def test_faults_of_the_spec_give_no_opcode(self):
        before = self.text("spec/opcodes.toml")
        self.add("spec/box.toml", '[calls.cuBoxShut]\nmode = "barrier"\n')
        code, out, err = self.register()
        self.assertEqual((code, out), (1, ""))
        self.assertIn("cuBoxShut: [unknown-name]", err)
        self.assertEqual(self.text("spec/opcodes.toml"), before)

    def test_the_first_opcodes(self):
        (self.folder / "spec" / "opcodes.toml").unlink()
        code, out, _ = self.register()
        self.assertEqual((code, len(out.splitlines())), (0, 14))
        self.assert_accepted()

    def test_another_toolkit_is_a_readable_diff(self):
        before = self.text("spec/abi/13000.txt").splitlines()
        self.change("toolkit/cudaProfiler.h", "cuProfilerStart(void)", "cuProfilerStart(int mode)")
        self.change("toolkit/cudaProfilerTypedefs.h", "v4000)(void)", "v4000)(int mode)")
        self.assertEqual(self.register()[0], 1)
        self.assertEqual(self.register("--toolkit")[0], 0)
        after = self.text("spec/abi/13000.txt").splitlines()
        self.assertEqual([line.split()[0] for line in set(before) ^ set(after)], ["cuProfilerStart"] * 2)
        self.assertEqual(len(before), len(after))
        self.assert_accepted()


if __name__ == "__main__":
    unittest.main()
