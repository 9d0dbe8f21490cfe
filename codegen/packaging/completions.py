"""Writes completions of a program for bash, zsh and fish from its help.

completions.py PROGRAM FOLDER"""

import sys
from pathlib import Path

import helptext


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def key(command):
    """The words by which a command is found, without the program's own."""
    return " ".join(command.words[1:])


def bash(root):
    """By the deepest command that the words before the cursor name. Behind `--` it is the program's turn, which bash
    completes itself."""
    program = root.words[0]
    function = f"_{program}"
    words, values = [], []
    for command in root.all():
        names = [name for row in command.options
                 for name in row.names] + [below.words[-1] for below in command.subcommands]
        words.append(f"    {quoted(key(command))}) words={quoted(' '.join(names))} ;;")
        for row in command.options:
            if row.value:
                choices = f" words={quoted(' '.join(row.choices))}" if row.choices else " words="
                values += [f"    {quoted(key(command) + ' ' + name)}) value=1{choices} ;;" for name in row.names]
    commands = "|".join(quoted(key(command)) for command in root.all() if command is not root) or "''"
    return f"""# bash completion of {program}, made from its help
{function}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} command= next word words= value= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${{COMP_WORDS[i]}}
    [ "$word" != -- ] || {{ COMPREPLY=(); compopt -o default; return; }}
    next=${{command:+$command }}$word
    case $next in {commands}) command=$next ;; esac
  done
  case "$command ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{chr(10).join(values)}
  esac
  if [ -z "$value" ]; then
    case $command in
{chr(10).join(words)}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F {function} {program}
"""


def zsh(root):
    """zsh completes by bash's rules where bashcompinit is loaded; these are its own, with what each word means."""
    program = root.words[0]

    def plain(text):
        return text.replace("\\", "").replace(":", "\\:")

    cases = []
    for command in root.all():
        described = [f"{plain(below.words[-1])}:{plain(below.about)}" for below in command.subcommands]
        options = [f"{plain(name)}:{plain(row.help)}" for row in command.options for name in row.names]
        cases.append(f"    {quoted(key(command))})\n"
                     f"      commands=({' '.join(map(quoted, described))})\n"
                     f"      options=({' '.join(map(quoted, options))}) ;;")
    values = [f"    {quoted(key(command) + ' ' + name)}) "
              + (f"compadd -- {' '.join(map(quoted, row.choices))}" if row.choices else "_files") + "; return ;;"
              for command in root.all() for row in command.options if row.value for name in row.names]
    known = "|".join(quoted(key(command)) for command in root.all() if command is not root) or "''"
    return f"""#compdef {program}
# made from its help
_{program}() {{
  local command= next word
  local -a commands options
  local i
  for ((i = 2; i < CURRENT; ++i)); do
    word=$words[i]
    if [[ $word == -- ]]; then
      shift $i words
      ((CURRENT -= i))
      _normal
      return
    fi
    next=${{command:+$command }}$word
    case $next in ({known}) command=$next ;; esac
  done
  case "$command $words[CURRENT-1]" in
{chr(10).join(line.replace("    '", "    ('", 1) for line in values)}
  esac
  case $command in
{chr(10).join(case.replace("    '", "    ('", 1) for case in cases)}
  esac
  if [[ $words[CURRENT] == -* ]]; then
    _describe option options
  elif (($#commands)); then
    _describe command commands
  else
    _files
  fi
}}
_{program} "$@"
"""


def fish(root):
    """Each line holds where the words before the cursor name just this command."""
    program = root.words[0]
    function = f"__fish_{program}_command"
    lines = [f"# fish completion of {program}, made from its help", f"function {function}",
             "  set -l command", "  for word in (commandline -opc)[2..-1]",
             "    set -l next (string join -- ' ' $command $word)",
             "    if contains -- \"$next\" "
             f"{' '.join(quoted(key(c)) for c in root.all() if c is not root) or quoted('')}",
             "      set command $next", "    end", "  end", "  test \"$command\" = \"$argv[1]\"", "end"]
    for command in root.all():
        when = f"complete -c {program} -n {quoted(f'{function} ' + quoted(key(command)))}"
        lines += [f"{when} -f -a {quoted(below.words[-1])} -d {quoted(below.about)}" for below in command.subcommands]
        for row in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in row.names)
            value = (f" -x -a {quoted(' '.join(row.choices))}" if row.choices else " -r") if row.value else ""
            lines.append(f"{when} {names}{value} -d {quoted(row.help)}")
    return "\n".join(lines) + "\n"


def main(program, folder):
    root = helptext.read(program)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = root.words[0]
    for shell, make in (("bash", bash), ("zsh", zsh), ("fish", fish)):
        (folder / f"{name}.{shell}").write_text(make(root), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
