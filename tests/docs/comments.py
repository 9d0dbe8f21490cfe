"""Comments of the sources, texts of the documents, and what a program can see of how they are written.

Help texts, descriptions of settings, notes of the spec and meanings of errors and metrics are in pages of the
reference, which are made from them: as documents they keep to the rules too.
"""

import io
import re
import tokenize

from pages import MADE, SOURCE

SLASHES = (".h", ".cpp", ".cu", ".cuh", ".j2")
HASHES = (".capnp", ".toml", ".txt", ".cmake", "")  # without a suffix: scripts
COMMENT = {"//": re.compile(r"(?:^|(?<=\s))//[/!]?<?(?:\s+|$)(.*)$"), "#": re.compile(r"(?:^|(?<=\s))#(?:\s+|$)(.*)$")}

NOUN = "say by a noun which person, process or thread it is"
FACT = "say the fact itself: the comment before may change or go"
# What the sentences of comments may not have, and what to write instead.
# A comment that is two words long leans on the one before too.
RULES = (
    (re.compile(r"(?:^|[.?!] +)(Who|Whom|Whose)\b"), NOUN),
    (re.compile(r"^(who|whose)\b"), NOUN),
    (re.compile(r"\b([Ww]hoever|[Ww]homever)\b"), NOUN),
    (re.compile(r"\b([Hh]e|[Hh]im|[Hh]is|[Hh]imself|[Ss]he|[Hh]ers?|[Hh]erself)\b"), NOUN),
    (re.compile(r"^(The same|Likewise|So (?:does|do|is|are)|As above|Ditto)\b"), FACT),
    (re.compile(r"^(the same|likewise|as above|ditto)[.]?$"), FACT),
)


def written_by_hand():
    """Files that have comments: those of the repository's folders, and of its top."""
    top = [path for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith(MADE)]
    files = [*SOURCE.glob("CMakeLists.txt"), *(file for folder in top for file in folder.rglob("*"))]
    return sorted(file for file in files if file.is_file() and has_comments(file))


def has_comments(file):
    if file.suffix:
        return file.suffix in (*SLASHES, *HASHES, ".py")
    with file.open("rb") as opened:
        return opened.read(2) == b"#!"


def marked_lines(text, mark):
    """Number of each line that has a comment, the comment, and whether it is alone on the line."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := COMMENT[mark].search(line):
            yield number, found[1], not line[:found.start()].strip()


def python_lines(text):
    """As marked_lines, of a program in Python; the documentation of modules, classes and functions is comments too."""
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#! "), not token.line[:token.start[1]].strip()
        elif token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            for number, line in enumerate(token.string.strip("rb\"'").splitlines(), token.start[0]):
                yield number, line.strip(), True
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type


def page_comments(text):
    """What a page says, as comments has it: paragraphs, items of lists, cells of tables, lines of blocks of code."""
    together, in_code = [], False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        begins = re.match(r"\s*(?:[-*] |\d+\. |#|\||$)", line)
        if together and (fence or in_code or begins):
            yield together
            together = []
        if in_code and not fence or line.startswith("|"):  # in columns; a comment of a script is a line of it
            for cell in re.split(r"\s{2,}|\s*(?<!\\)\|\s*", re.sub(r"(?:^|\s)#\s+", "  ", line)):
                if cell:
                    yield [(number, cell)]
        elif line.strip() and not fence:
            together.append((number, re.sub(r"^(?:[-*]|\d+\.|#+) +", "", line.strip())))
        in_code ^= fence


def comments(text, suffix):
    """Each comment, as the numbers of its lines and their texts.

    Lines that follow each other are one comment; one behind code is its own.
    """
    if suffix == ".md":
        yield from page_comments(text)
        return
    found = python_lines(text) if suffix == ".py" else marked_lines(text, "//" if suffix in SLASHES else "#")
    together = []
    for number, line, alone in found:
        if together and (not alone or number != together[-1][0] + 1 or not together[-1][2] or not line.strip()):
            yield [(n, t) for n, t, _ in together]
            together = []
        if line.strip():
            together.append((number, line.strip(), alone))
    if together:
        yield [(n, t) for n, t, _ in together]


def findings(text, suffix):
    """Of all that is against the rules: the number of the line, the words from there on, and what to do."""
    for comment in comments(text, suffix):
        whole = " ".join(line for _, line in comment)
        for rule, repair in RULES:
            for found in rule.finditer(whole):
                yield line_at(comment, found.start(1)), whole[found.start(1):][:60], repair


def line_at(comment, place):
    """The number of the line that a place of the whole comment is on."""
    for number, line in comment:
        if place <= len(line):
            return number
        place -= len(line) + 1
    raise ValueError("behind the comment")
