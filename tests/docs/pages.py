"""The repository's Markdown: pages, their headings, and what they name."""

import re
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
MADE = (".", "build", "install")  # how folders at the top begin whose contents are made


@cache
def folders(folder):
    """Names of the folders in a folder."""
    return {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()


def pages():
    """Every Markdown file of the repository."""
    top = [path for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith(MADE)]
    return sorted([*SOURCE.glob("*.md"), *(page for folder in top for page in folder.rglob("*.md"))])


def sources():
    """Files of the code that speak of documents."""
    top = [path for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith(MADE)]
    return sorted(file for folder in top for file in folder.rglob("*")
                  if file.suffix in (".cpp", ".h", ".capnp", ".py", ".toml", ".j2", ".txt"))


def lines(page):
    """Number and text of each line, and whether it is prose: neither in a block of code nor of a table."""
    in_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = line.lstrip().startswith("```")
        yield number, line, not (in_code or fence or line.startswith("|"))
        in_code ^= fence


def text_without_code(page):
    in_code, kept = False, []
    for line in page.read_text().splitlines():
        fence = line.lstrip().startswith("```")
        kept.append("" if in_code or fence else line)
        in_code ^= fence
    return "\n".join(kept)


@cache
def anchors(page):
    """What a link may name behind #, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", text_without_code(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page):
    """Targets of links and pictures, but for those of the web."""
    text = re.sub(r"`[^`]*`", "", text_without_code(page))
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"\w+:", target)]


def dangling_link(page, target):
    """Why a link leads nowhere, or nothing."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return f"there is no {target}"
    if anchor and file.suffix == ".md" and anchor not in anchors(file):
        return f"{target}: no heading there is called so"
    return None


PATH = re.compile(r"(?!/)[\w.+/*<>-]*/[\w.+/*<>-]*")


def named_paths(page):
    """What stands in backticks outside of code blocks and looks like a path."""
    return [name for name in re.findall(r"`([^`\n]+)`", text_without_code(page)) if PATH.fullmatch(name)]


def missing_path(page, name):
    """Whether a path begins in this repository and does not lead anywhere. A stem stands for the files of that name, *
    and <...> for anything. Paths count from the top, from the page's folder, or, as tests are called, from tests/."""
    if "..." in name:
        return False
    first = re.split(r"[/*<]", name)[0]
    bases = [base for base in (SOURCE, page.parent, SOURCE / "tests") if first in folders(base)]
    if not bases or first.startswith(MADE):
        return False
    pattern = re.sub(r"<[^>]*>", "*", name.rstrip("/"))
    return not any(any(base.glob(pattern + end)) for base in bases for end in ("", ".*"))
