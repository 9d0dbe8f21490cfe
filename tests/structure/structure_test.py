"""The structure of the sources: which folder may include which stands in order.toml, and no files include each other in
a circle.

`structure_test.py --shrink` removes from known.txt what is no longer needed."""

import functools
import pathlib
import re
import subprocess
import sys
import tomllib
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KNOWN = HERE / "known.txt"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class Structure:
    """`files`: the text of each source by its path. `parts`: as order.toml has them."""

    def __init__(self, files, parts):
        self.files = files
        self.parts = parts

    def part_of(self, path):
        """The innermost part around a file."""
        around = [part for part in self.parts if path.startswith(part + "/")]
        return max(around, key=len, default=None)

    def folder_of(self, path):
        """The folder of its part's order that a file is in: None if it is in none, "" if the part is one folder."""
        part = self.part_of(path)
        order = self.parts[part].get("order")
        if order is None:
            return ""
        within = path[len(part) + 1:]
        folder = within.split("/")[0] if "/" in within else "."
        return folder if folder in order else None

    @functools.cached_property
    def includes(self):
        """Pairs of files; what is not found is generated. A path that begins with a part must be found."""
        pairs, lost = [], []
        for path, text in sorted(self.files.items()):
            for name in INCLUDE.findall(text):
                beside = str(pathlib.PurePosixPath(path).parent / name)
                found = next((one for one in (beside, name) if one in self.files), None)
                if found:
                    pairs.append((path, found))
                elif self.part_of(name):
                    lost.append(f"{path} includes {name}, which is not there")
        return pairs, lost

    def why_not(self, path, included):
        """The rule against an include; None if there is none."""
        part, other = self.part_of(path), self.part_of(included)
        folder, lower = self.folder_of(path), self.folder_of(included)
        if part == other:
            order = self.parts[part].get("order")
            if not order or order.index(lower) <= order.index(folder):
                return None
            return f"in {part}, {folder} stands before {lower}"
        allowed = self.parts[part].get("includes", [])
        if other in allowed or f"{other}/{lower}" in allowed:
            return None
        return f"{part} includes nothing but {', '.join([part, *allowed])}"

    def homeless(self):
        return sorted(path for path in self.files if self.part_of(path) is None or self.folder_of(path) is None)

    def against_the_order(self):
        """{"file -> file": the rule}"""
        found = {}
        for path, included in self.includes[0]:
            if why := self.why_not(path, included):
                found[f"{path} -> {included}"] = why
        return found

    def circles(self):
        """Sets of files that include each other, each file by its path without the ending: x.h and x.cpp are one."""
        graph = {}
        for pair in self.includes[0]:
            one, other = (path.rsplit(".", 1)[0] for path in pair)
            graph.setdefault(other, set())
            graph.setdefault(one, set())
            if one != other:
                graph[one].add(other)
        return [circle for circle in components(graph) if len(circle) > 1]


def components(graph):
    """The strongly connected components of a graph (Tarjan's algorithm, without recursion)."""
    number, low, stack, on_stack, found = {}, {}, [], set(), []
    for root in sorted(graph):
        if root in number:
            continue
        work = [(root, iter(sorted(graph[root])))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for following in rest:
                if following not in number:
                    number[following] = low[following] = len(number)
                    stack.append(following)
                    on_stack.add(following)
                    work.append((following, iter(sorted(graph[following]))))
                    break
                if following in on_stack:
                    low[node] = min(low[node], number[following])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    at = stack.index(node)
                    found.append(set(stack[at:]))
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
    return found


def sources():
    named = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "client", "server", "protocol"],
                           capture_output=True, text=True, check=True).stdout.split()
    return {path: (ROOT / path).read_text() for path in named if path.endswith((".h", ".cpp"))
            and (ROOT / path).exists()}


def repository():
    return Structure(sources(), tomllib.loads((HERE / "order.toml").read_text()))


def known():
    lines = [line.strip() for line in KNOWN.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def present(structure):
    """What known.txt would have to hold: includes against the order, and files in circles."""
    in_circles = {f"circle {path}" for circle in structure.circles() for path in circle}
    return set(structure.against_the_order()) | in_circles


class RepositoryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.structure = repository()
        cls.known = known()

    def test_every_file_has_its_place(self):
        self.assertEqual(self.structure.homeless(), [], "in no folder of order.toml")
        self.assertEqual(self.structure.includes[1], [])
        self.assertGreater(len(self.structure.includes[0]), 500)

    def test_includes_keep_to_the_order(self):
        wrong = [f"{pair}: {why}" for pair, why in sorted(self.structure.against_the_order().items())
                 if pair not in self.known]
        self.assertEqual(wrong, [], "\nincludes against order.toml:\n" + "\n".join(wrong))

    def test_no_files_include_each_other_in_a_circle(self):
        wrong = [sorted(circle) for circle in self.structure.circles()
                 if any(f"circle {path}" not in self.known for path in circle)]
        self.assertEqual(wrong, [], "\nfiles that include each other in a circle (x.h and x.cpp are one)")

    def test_what_is_known_is_still_there(self):
        gone = sorted(set(self.known) - present(self.structure))
        self.assertEqual(gone, [], "\nno longer needed in known.txt (structure_test.py --shrink):\n" + "\n".join(gone))


class RulesTest(unittest.TestCase):
    PARTS = {"low": {"order": [".", "inner"]}, "high": {"order": ["one", "two"], "includes": ["low"]},
             "high/aside": {"includes": ["high/one"]}}

    def wrong(self, files):
        return sorted(Structure(files, self.PARTS).against_the_order())

    def test_a_folder_includes_itself_and_lower_ones(self):
        files = {"high/one/a.h": '#include "b.h"', "high/one/b.h": "",
                 "high/two/c.h": '#include "high/one/a.h"\n#include "low/d.h"',
                 "low/d.h": "#include <map>\n#include \"generated.h\""}
        self.assertEqual(self.wrong(files), [])
        files["high/one/b.h"] = '  #  include "high/two/c.h"'
        self.assertEqual(self.wrong(files), ["high/one/b.h -> high/two/c.h"])
        self.assertEqual(Structure(files, self.PARTS).why_not("high/one/b.h", "high/two/c.h"),
                         "in high, one stands before two")

    def test_a_part_includes_the_parts_named_for_it(self):
        files = {"low/a.h": '#include "high/one/b.h"', "high/one/b.h": "", "high/two/c.h": "",
                 "high/aside/d.h": '#include "high/one/b.h"\n#include "high/two/c.h"\n#include "low/a.h"'}
        self.assertEqual(self.wrong(files), ["high/aside/d.h -> high/two/c.h", "high/aside/d.h -> low/a.h",
                                             "low/a.h -> high/one/b.h"])

    def test_a_part_s_own_folder_is_one_of_its_order(self):
        self.assertEqual(self.wrong({"low/a.h": '#include "inner/b.h"', "low/inner/b.h": ""}),
                         ["low/a.h -> low/inner/b.h"])
        self.assertEqual(self.wrong({"low/inner/b.h": '#include "low/a.h"', "low/a.h": ""}), [])

    def test_a_file_outside_the_order_has_no_place(self):
        files = {"high/three/a.h": "", "high/b.h": "", "elsewhere/c.h": "", "high/one/d.h": ""}
        self.assertEqual(Structure(files, self.PARTS).homeless(), ["elsewhere/c.h", "high/b.h", "high/three/a.h"])

    def test_a_file_that_is_not_there_is_told(self):
        lost = Structure({"low/a.h": '#include "low/gone.h"'}, self.PARTS).includes[1]
        self.assertEqual(lost, ["low/a.h includes low/gone.h, which is not there"])

    def test_circles_go_through_headers_and_sources(self):
        files = {"low/a.h": "", "low/a.cpp": '#include "a.h"\n#include "b.h"', "low/b.h": '#include "c.h"',
                 "low/c.h": "",
                 "low/c.cpp": '#include "c.h"\n#include "a.h"', "low/d.h": '#include "a.h"'}
        self.assertEqual(Structure(files, self.PARTS).circles(), [{"low/a", "low/b", "low/c"}])
        files["low/c.cpp"] = '#include "c.h"'
        self.assertEqual(Structure(files, self.PARTS).circles(), [])


def shrink():
    needed = present(repository())
    lines = KNOWN.read_text().splitlines(keepends=True)
    KNOWN.write_text("".join(line for line in lines if not line.strip() or line.startswith("#")
                             or line.strip() in needed))


if __name__ == "__main__":
    if sys.argv[1:] == ["--shrink"]:
        shrink()
    else:
        unittest.main()
