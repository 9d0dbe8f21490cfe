"""What a command says of itself by --help, taken apart: the one source of manual pages and completions."""

import os
import re
import subprocess
from dataclasses import dataclass, field


@dataclass
class Row:
    """An option, a positional or a subcommand."""

    names: list  # of an option, without its value
    value: str  # its type, "" for a flag
    help: str

    @property
    def choices(self):
        found = re.search(r"\{([^}]*)\}", self.value)
        return found[1].split(",") if found else []


@dataclass
class Command:
    words: list  # ["fargpu", "token", "create"]
    about: str
    usage: str
    positionals: list = field(default_factory=list)
    options: list = field(default_factory=list)
    subcommands: list = field(default_factory=list)  # of Command
    footer: str = ""

    @property
    def exit_codes(self):
        return re.findall(r"^  (\d+) +(.+)$", self.footer.partition("Exit codes:\n")[2], re.M)

    def all(self):
        """The command and those below it."""
        yield self
        for command in self.subcommands:
            yield from command.all()


def output(program, *arguments):
    """Without what the environment of the build says; the home is a word, as it is another one for each user."""
    environment = {"PATH": os.environ["PATH"], "HOME": "~", "LC_ALL": "C"}
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True, env=environment).stdout


HELP_COLUMN = 30


def rows(lines):
    """A row's help stands beside its name, or in the next line where the name reaches into the help's column."""
    found = []
    for line, following in zip(lines, [*lines[1:], ""]):
        if line.startswith(" " * HELP_COLUMN):
            found[-1].help = line.strip()
            continue
        alone = following.startswith(" " * HELP_COLUMN)
        name, _, value = (line if alone else line[:HELP_COLUMN]).strip().partition(" ")
        found.append(Row(name.split(","), value, "" if alone else line[HELP_COLUMN:].strip()))
    return found


def parse(words, text):
    about, _, rest = text.partition("\nUsage: ")
    usage, _, rest = rest.partition("\n")
    command = Command(words, about.strip(), usage.strip())
    sections = {"Positionals:": [], "Options:": [], "Subcommands:": []}
    footer, section = [], None
    for line in rest.splitlines():
        if line in sections and not footer:
            section = sections[line]
        elif section is not None and (line.startswith("  ") or not line):
            if line:
                section.append(line)
        elif line or footer:
            section = None
            footer.append(line)
    command.positionals = rows(sections["Positionals:"])
    command.options = rows(sections["Options:"])
    command.subcommands = rows(sections["Subcommands:"])
    command.footer = "\n".join(footer).strip()
    return command


def read(program, *words):
    """The command with all below it; `program` is the path of the built one."""
    command = parse([os.path.basename(program), *words], output(program, *words, "--help"))
    command.subcommands = [read(program, *words, row.names[0]) for row in command.subcommands]
    if not command.about or not command.options:
        raise ValueError(f"the help of `{' '.join(command.words)}` is not understood")
    return command
