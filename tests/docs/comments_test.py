"""What the comments of every source keep to, and the words of every document."""

import unittest

from comments import findings, written_by_hand
from pages import SOURCE, pages

# Far fewer would mean that they are looked for in the wrong place.
FILES_MIN = 900
PAGES_MIN = 50


def places(text, suffix=".cpp"):
    return [(number, words.split(" ")[0].rstrip(".")) for number, words, _ in findings(text, suffix)]


class Rules(unittest.TestCase):
    """That each rule finds what it is for, and nothing else."""

    def test_a_subject_is_a_noun(self):
        self.assertEqual(places("// Who waits is told.\n"), [(1, "Who")])
        self.assertEqual(places("int a;  // who waits is told\n"), [(1, "who")])
        self.assertEqual(places("/// A thread sleeps. Who\n/// wakes it pays.\n"), [(1, "Who")])
        self.assertEqual(places("/// A thread sleeps.\n/// Whose turn it is\n/// is told.\n"), [(2, "Whose")])
        self.assertEqual(places("int a;  ///< owned by whoever receives it\n"), [(1, "whoever")])

    def test_no_person_or_process_is_he(self):
        self.assertEqual(places("// The tenant has what\n// is his.\n"), [(2, "his")])
        self.assertEqual(places("# He waits.\n", ".toml"), [(1, "He")])
        self.assertEqual(places("a @0 :Data;  # of him\n", ".capnp"), [(1, "him")])

    def test_a_comment_stands_by_itself(self):
        text = "int a;  // of a thread\n/// The same for all.\nint b;  // the same\n"
        self.assertEqual(places(text), [(2, "The"), (3, "the")])
        text = "// Likewise for all.\n\n// So does the other.\n\n// As above.\n"
        self.assertEqual(places(text), [(1, "Likewise"), (3, "So"), (5, "As")])

    def test_documentation_in_python_is_comments(self):
        text = 'def a():\n    """The same, but later."""\n    return """The same."""  # whoever asks\n'
        self.assertEqual(places(text, ".py"), [(2, "The"), (3, "whoever")])

    def test_words_of_documents_are_comments(self):
        text = "# Who\n\nA host waits. Who\nasks is told.\n\n- The same\n  for all.\n- Hers.\n"
        self.assertEqual(places(text, ".md"), [(1, "Who"), (3, "Who"), (6, "The"), (8, "Hers")])
        text = "| name | meaning |\n|---|---|\n| a \\| b | whoever asks |\n"
        self.assertEqual(places(text, ".md"), [(3, "whoever")])
        text = "```\n  --tenant NAME     Whose it is\nrun  # the same\n```\n\nThe same.\n"
        self.assertEqual(places(text, ".md"), [(2, "Whose"), (3, "the"), (6, "The")])

    def test_other_words_are_let_be(self):
        for text in ("// Text for the person who runs the program.\n", 'print("Who waits");\n',
                     "// This, that: the same pages.\n",
                     "int a;  // the same pages here and there\n", "// A program whose calls end.\n",
                     'char url[] = "http://he";\n'):
            self.assertEqual(places(text), [], text)


class Comments(unittest.TestCase):
    maxDiff = None

    def test_sources(self):
        files = written_by_hand()
        self.assertGreater(len(files), FILES_MIN)
        self.assert_kept(files)

    def test_documents(self):
        self.assertGreater(len(pages()), PAGES_MIN)
        self.assert_kept(pages())

    def assert_kept(self, files):
        self.assertEqual([f"{file.relative_to(SOURCE)}:{number}: {words}: {repair}" for file in files
                          for number, words, repair in findings(file.read_text(), file.suffix)], [],
                         "rewrite these lines")


if __name__ == "__main__":
    unittest.main()
