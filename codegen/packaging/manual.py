"""Writes the manual pages from what the built programs say of themselves.

manual.py FARGPU FARGPUD FOLDER"""

import itertools
import json
import re
import sys
from pathlib import Path

import helptext


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.splitlines())


class Page:
    """A page in the language of man(7)."""

    def __init__(self, name, section, about, version):
        self.lines = [f'.TH "{name.upper()}" "{section}" "" "{version}" "fargpu"']
        self.heading("name")
        self.text(f"{name} - {about}")

    def heading(self, text):
        self.lines.append(f".SH {text.upper()}")

    def subheading(self, text):
        self.lines.append(f'.SS "{escaped(text)}"')

    def text(self, text):
        self.lines += [".PP", escaped(text)]

    def commands(self, lines):
        self.lines += [".PP", ".RS 4", ".nf", *map(escaped, lines), ".fi", ".RE"]

    def entry(self, names, value, text):
        """What is explained, in bold, with its value; then the words."""
        bold = ", ".join(f"\\fB{escaped(name)}\\fR" for name in names)
        self.lines += [".TP", bold + (f" \\fI{escaped(value)}\\fR" if value else ""), escaped(text) or "\\&"]

    def see(self, *pages):
        self.heading("see also")
        self.lines += [".PP", ", ".join(f"\\fB{escaped(name)}\\fR({section})" for name, section in pages)]

    def write(self, path):
        path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")


def rows_of(page, command):
    for row in command.positionals + command.options:
        page.entry(row.names, row.value, row.help)


def exit_codes_of(page, command):
    if command.exit_codes:
        page.text("Exit codes:")
        for number, meaning in command.exit_codes:
            page.entry([number], "", meaning)


def closing_of(page, command):
    """What the help says at its end besides exit codes: sentences, and commands on lines of their own."""
    lines = [line for line in command.footer.splitlines() if line and not re.match(r"Exit codes:|  \d", line)]
    for indented, some in itertools.groupby(lines, lambda line: line.startswith("  ")):
        if indented:
            page.commands(line.strip() for line in some)
        else:
            page.text(" ".join(some))


def fargpu_page(command, version):
    page = Page("fargpu", 1, command.about.removeprefix("fargpu ").rstrip("."), version)
    page.heading("synopsis")
    page.text(command.usage)
    page.heading("description")
    page.text(command.about)
    closing_of(page, command)
    page.heading("options")
    rows_of(page, command)
    page.heading("commands")
    for below in list(command.all())[1:]:
        page.subheading(" ".join(below.words))
        page.text(below.about + ".")
        page.text(f"Usage: {below.usage}")
        rows_of(page, below)
        exit_codes_of(page, below)
        closing_of(page, below)
    page.see(("fargpu-environment", 7), ("fargpud", 8))
    return page


def environment_page(variables, version):
    page = Page("fargpu-environment", 7, "variables of the environment that fargpu's clients read", version)
    page.heading("description")
    page.text("The client library and the command `fargpu` read these variables.")
    page.heading("variables")
    for one in variables:
        page.entry([one["name"]], f"[{one['default']}]" if one["default"] else "", one["meaning"])
    page.see(("fargpu", 1))
    return page


def fargpud_page(command, version):
    page = Page("fargpud", 8, command.about.removeprefix("fargpud ").rstrip("."), version)
    page.heading("synopsis")
    page.text(command.usage)
    page.heading("description")
    closing_of(page, command)
    page.heading("options")
    for row in command.options:
        # The build's own paths are nobody else's.
        row.help = re.sub(r"\(default: \S+, if there is one\)",
                          "(default: /etc/fargpu/fargpud.toml where fargpud is installed in /usr, else "
                          "etc/fargpu/fargpud.toml below its "
                          "prefix; if there is one)", row.help)
        row.help = re.sub(r"\[/\S+/fargpu-worker,", "[the one that was installed with fargpud,", row.help)
    rows_of(page, command)
    page.heading("exit status")
    exit_codes_of(page, command)
    page.see(("fargpud.toml", 5), ("fargpu", 1))
    return page


def settings_page(sample, version):
    """Both parts of the sample: settings below their explanation, keys of a tenant beside it."""
    general, _, tenants = sample.partition("# [tenant.lab]\n")
    settings = re.findall(r"^# (.+)\n# (\w+) = (.*)$", general, re.M)
    keys = re.findall(r"^# (\w+) = (\S.*?) +# (.+)$", tenants, re.M)
    if len(settings) + len(keys) != len(re.findall(r"^# \w+ = ", sample, re.M)):
        raise ValueError("a setting of `fargpud --sample-config` is not understood")
    page = Page("fargpud.toml", 5, "settings of fargpud", version)
    page.heading("description")
    page.text("The file is TOML. Each value shown is the default, where the words do not say otherwise.")
    page.heading("settings")
    for meaning, name, value in settings:
        page.entry([name], f"= {value}", meaning)
    page.heading("tenants")
    page.text("Each tenant has a table [tenant.NAME]. The values are examples.")
    for name, value, meaning in keys:
        page.entry([name], f"= {value}", meaning)
    page.see(("fargpud", 8))
    return page


def main(fargpu, fargpud, folder):
    version = helptext.output(fargpu, "--version").strip()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    fargpu_page(helptext.read(fargpu), version).write(folder / "fargpu.1")
    environment_page(json.loads(helptext.output(fargpu, "variables", "-o", "json")),
                     version).write(folder / "fargpu-environment.7")
    fargpud_page(helptext.read(fargpud), version).write(folder / "fargpud.8")
    settings_page(helptext.output(fargpud, "--sample-config"), version).write(folder / "fargpud.toml.5")


if __name__ == "__main__":
    main(*sys.argv[1:])
