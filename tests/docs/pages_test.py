"""What every page of the documents keeps to."""

import re
import unittest

from pages import SOURCE, dangling_link, lines, links, missing_path, named_paths, pages, sources, text_without_code

README_BYTES_MAX = 7000
FOLDER_README_BYTES_MAX = 2500
LONG_READMES = ("tests", "bench")  # references of how to run what is in them
COLUMNS_MAX = 120


def name(page):
    return str(page.relative_to(SOURCE))


class Pages(unittest.TestCase):
    maxDiff = None

    def assert_none(self, findings, repair):
        self.assertEqual(findings, [], repair)

    def test_links_lead_somewhere(self):
        self.assert_none([f"{name(page)}: {why}" for page in pages()
                          for target in links(page) if (why := dangling_link(page, target))],
                         "correct the links")

    def test_named_paths_are_there(self):
        self.assert_none([f"{name(page)}: {path}" for page in pages()
                          for path in named_paths(page) if missing_path(page, path)],
                         "name the files by their present paths")

    def test_documents_that_sources_name_are_there(self):
        named = {(name(file), path) for file in sources()
                 for path in re.findall(r"\b(?:[\w-]+/)+[\w-]+\.md\b", file.read_text())}
        self.assertGreater(len(named), 5)
        self.assert_none([f"{file}: {path}" for file, path in sorted(named) if not (SOURCE / path).exists()],
                         "name the document by its present path")

    def test_every_document_is_in_the_table_of_contents(self):
        contents = SOURCE / "docs" / "README.md"
        linked = {(contents.parent / target.partition("#")[0]).resolve() for target in links(contents)}
        self.assert_none([name(page) for page in (SOURCE / "docs").rglob("*.md") if page != contents
                          and page.resolve() not in linked],
                         "name them in docs/README.md")

    def test_what_cannot_work_over_a_network_is_shown_by_tests(self):
        page = SOURCE / "docs/reference/over-a-network.md"
        rows = [line for line in page.read_text().splitlines() if line.startswith("| ")][1:]
        self.assertGreater(len(rows), 5)
        missing = []
        for row in rows:
            shown_by = row.strip(" |").rpartition(" | ")[2]
            tests = re.findall(r"`([^`]+)`", shown_by)
            if not tests and not shown_by.startswith("none: "):
                missing.append(row)
            for test in tests:
                program, _, case = test.partition(" ")
                file, wanted = SOURCE / f"tests/{program}.cpp", ""
                if program.startswith("kernels_"):
                    file, wanted = SOURCE / f"tests/kernels/{program}.cu", f"CASE({case})"
                elif program == "tests/gpu/run":
                    file, wanted = SOURCE / program, f"def {case}("
                if not file.exists() or wanted not in file.read_text():
                    missing.append(test)
        self.assert_none(missing, "name a test that exists, or the reason why there can be none")

    def test_sizes(self):
        self.assertLessEqual((SOURCE / "README.md").stat().st_size, README_BYTES_MAX, "move something to docs/")
        self.assert_none([f"{name(page)}: {page.stat().st_size} bytes" for page in pages()
                          if page.name == "README.md" and len(page.relative_to(SOURCE).parts) > 1
                          and page.relative_to(SOURCE).parts[0] not in ("docs", *LONG_READMES)
                          and page.stat().st_size > FOLDER_README_BYTES_MAX], "move something to docs/")

    def test_columns(self):
        self.assert_none([f"{name(page)}:{number}: {len(line)} columns" for page in pages()
                          for number, line, prose in lines(page)
                          if prose and len(line) > COLUMNS_MAX], f"at most {COLUMNS_MAX} outside tables and code")

    def test_sentences_have_a_subject(self):
        """Sentences begin with neither `Who ...` nor `The same ...`, which need the one before to be understood."""
        begins = re.compile(r"(?:^|[.?!] |^ *[-*] )((?:Who|The same) [^.]{0,50})", re.M)
        for page in pages():
            paragraphs = [" ".join(part.split("\n"))
                          for part in re.split(r"\n\n+|\n(?=[-*|])", text_without_code(page))]
            self.assert_none([f"{name(page)}: {found[1]}" for part in paragraphs for found in begins.finditer(part)],
                             "say what or which it is")


if __name__ == "__main__":
    unittest.main()
