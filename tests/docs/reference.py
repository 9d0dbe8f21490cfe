"""Makes the reference pages from the one place that each of them has in the code."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

from pages import SOURCE

BUILD = Path(os.environ.get("FARGPU_BUILD", SOURCE / "build"))
TOOLKIT = Path(os.environ.get("FARGPU_TOOLKIT", "/usr/local/cuda/include"))
PAGES = SOURCE / "docs" / "reference"
RENEW = "`tests/docs/reference_test.py --renew`"


def output(program, *arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FARGPU_", "FARGPUD_"))}
    return subprocess.run([BUILD / "bin" / program, *arguments], check=True, capture_output=True, text=True,
                          env=clean).stdout


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def table(header, rows):
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header),
                      *("| " + " | ".join(map(cell, row)) + " |" for row in rows)])


def code(text):
    return f"`{text}`" if text else ""


# --- client-variables.md --------------------------------------------------------------------------------------------


def variables():
    return json.loads(output("fargpu", "variables", "-o", "json"))


def client_variables():
    rows = [(code(one["name"]), one["default"], one["meaning"]) for one in variables()]
    return f"""# Client variables

Made from `client/base/environment.cpp` by {RENEW}. `fargpu variables` prints the
same list.

Variables of the environment that the client library and the command `fargpu` read. `fargpu run` makes names of files
absolute, so that they count from the folder in which it is started. `fargpu run`, `fargpu doctor` and the library name
variables that look like fargpu's and are not in this list.

{table(("variable", "default", "meaning"), rows)}

`CUDA_VISIBLE_DEVICES` filters and orders the devices, and `CUDA_LAUNCH_BLOCKING=1` makes every launch wait, as they do
with NVIDIA's driver. The worker gets these variables too, because the driver reads them when it starts:
{driver_variables()}.
"""


def driver_variables():
    names = re.findall(r'^    "(\w+)",$', (SOURCE / "protocol" / "driver_variables.h").read_text(), re.M)
    lines, line = [], ""
    for name in map(code, names):
        if len(line) + len(name) > 110:
            lines.append(line.rstrip())
            line = ""
        line += name + ", "
    return "\n".join([*lines, line.rstrip(", ")])


# --- command-line.md, exit-codes.md ---------------------------------------------------------------------------------


def commands():
    """Every command with the text of its help, in the order of the help."""
    found = {}

    def add(*words):
        found[" ".join(("fargpu", *words))] = text = output("fargpu", *words, "--help").rstrip() + "\n"
        below = text.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
        for name in re.findall(r"^  (\w+)  ", below, re.M):
            add(*words, name)

    add()
    return found


def command_line():
    text = f"""# Command line

Made from the commands' own help by {RENEW}. [Exit codes](exit-codes.md) and
[the variables](client-variables.md) have pages of their own, and so has
[`fargpud`](fargpud-settings.md).
"""
    return text + "".join(f"\n## {name}\n\n```\n{help_text}```\n" for name, help_text in commands().items())


def exit_code_lines(help_text):
    return re.findall(r"^  (\d+) +(.+)$", help_text.partition("\nExit codes:\n")[2], re.M)


def exit_codes():
    texts = {**commands(), "fargpud": output("fargpud", "--help")}
    rows = [(code(name), number, meaning) for name, text in texts.items() for number, meaning in exit_code_lines(text)]
    return f"""# Exit codes

Made from the commands' own help by {RENEW}.

{table(("command", "code", "meaning"), rows)}

Every other command of `fargpu` ends with 0 when it has done what was asked for, and with 125 otherwise, unless the host
denied it (126). The code of `fargpu run` is the program's own once the program has started.
"""


# --- fargpud-settings.md --------------------------------------------------------------------------------------------


def fargpud_settings():
    sample = output("fargpud", "--sample-config")
    general, tenants = sample.split("# [tenant.lab]\n")
    rows = [(code(name), code("FARGPUD_" + name.upper()), code(value.strip('"')), meaning)
            for meaning, name, value in re.findall(r"^# (.+)\n# (\w+) = (.*)$", general, re.M)]
    keys = [(code(f"{name} = {value}"), meaning)
            for name, value, meaning in re.findall(r"^# (\w+) = (\S.*?) +# (.+)$", tenants, re.M)]
    missed = len(re.findall(r"^# \w+ = ", sample, re.M)) - len(rows) - len(keys)
    if missed:
        raise ValueError(f"{missed} settings of `fargpud --sample-config` are not understood")
    return f"""# Settings of fargpud

Made from `fargpud --sample-config` by {RENEW}. The table of settings is in
`server/broker/settings_table.cpp`.

Each setting has a name in the settings file (TOML), a variable of the environment, and a flag: its name with dashes,
as in `--tls-certificate`. A setting that is true or false has the flags `--name` and `--no-name`. Flags count more than
variables, and variables more than the file. Amounts of bytes may have a unit, such as 4GiB. Paths in the file count
from its folder, others from the folder in which `fargpud` is started.

| command | prints |
|---|---|
| `fargpud --show-config` | every setting with its value, and where that comes from |
| `fargpud --check` | whether a start would succeed; the exit code is 2 if a setting is wrong, 1 without a driver |
| `fargpud --sample-config` | a settings file with every setting explained |
| `fargpud --help` | the flags, and which settings file is read by default |

{table(("setting", "variable", "default", "meaning"), rows)}

## Tenants

Each tenant has a table `[tenant.NAME]` in the settings file. Without any there is one tenant, `default`, without
limits. On SIGHUP the tenants are read again, and certificates and keys too. The values are examples.

{table(("key", "meaning"), keys)}
"""


# --- errors.md ------------------------------------------------------------------------------------------------------


def errors():
    return tomllib.loads((PAGES / "errors.toml").read_text())["error"]


def number_of(error):
    found = re.search(rf"^\s*CUDA_ERROR_{error}\s*=\s*(\d+)", (TOOLKIT / "cuda.h").read_text(), re.M)
    if not found:
        raise ValueError(f"cuda.h has no CUDA_ERROR_{error}")
    return found[1]


def error_page():
    rows = [(code(one["name"]), number_of(one["name"]), one["meaning"], one["repair"]) for one in errors()]
    return f"""# Errors

Made from `docs/reference/errors.toml` by {RENEW}.
A test compares it with the errors that opening and losing a session can lead to.

fargpu reports its own errors as CUDA errors, each with one line on stderr (or in `FARGPU_LOG_FILE`) that names the
cause and the repair. All other errors are the driver's, passed on unchanged. The names begin with `CUDA_ERROR_`.

{table(("error", "number", "meaning here", "repair"), rows)}
"""


# --- metrics.md -----------------------------------------------------------------------------------------------------


def metrics():
    """{name: (type, help, labels)}, as server/broker/status_metrics.cpp and pool_status.cpp add them."""
    source = "".join((SOURCE / "server" / "broker" / file).read_text()
                     for file in ("status_metrics.cpp", "pool_status.cpp"))
    labels, found = {}, {}
    pattern = re.compile(r"MetricsText::Labels (\w+)(?:\{(.*?)\};| = (\w+);)|(\w+)\.emplace_back\(\"(\w+)\"|"
                         r"text\.add(?:_histogram)?\(\"(\w+)\",\s*(?:\"(\w+)\",\s*)?((?:\"[^\"]*\"\s*)+),"
                         r"\s*(\{\{.*?\}\}|\w+),", re.S)
    for match in pattern.finditer(source):
        name, given, other, more, label, metric, kind, text, of = match.groups()
        if name:
            labels[name] = re.findall(r'\{"(\w+)"', given) if given else list(labels[other])
        elif more:
            labels[more].append(label)
        else:
            meaning = "".join(re.findall(r'"([^"]*)"', text))
            found.setdefault(metric, (kind or "histogram", meaning,
                                      re.findall(r'\{"(\w+)"', of) if of.startswith("{") else labels[of]))
    if len(re.findall(r"text\.add(?:_histogram)?\(",
                      source)) != sum(1 for match in pattern.finditer(source) if match[6]):
        raise ValueError("a series is not understood")
    return found


def metrics_page():
    rows = [(code(name), kind, meaning, ", ".join(map(code, labels)))
            for name, (kind, meaning, labels) in sorted(metrics().items())]
    return f"""# Metrics

Made from `status_metrics.cpp` and `pool_status.cpp` of `server/broker` by {RENEW}.

With `metrics_listen = "127.0.0.1:9470"`, `fargpud` answers `GET /metrics` with these series, in the text format of
Prometheus. Labels of devices are called as NVIDIA's DCGM exporter calls them (`Hostname`, `gpu`, `UUID`), so that both
can be joined. `GET /healthz` answers 200 while the host takes new sessions, and 503 with the reason otherwise.

{table(("series", "type", "meaning", "labels"), rows)}

Series of a session vanish with the session, and where more than 64 sessions run, those with a `session` label are left
out. Those of a pool are told by each of its members, as it last saw the whole pool. Counters of a tenant grow as long
as `fargpud` runs and count ended sessions too. A limit that is not set has no series.
"""


MAKERS = {
    "client-variables.md": client_variables,
    "command-line.md": command_line,
    "exit-codes.md": exit_codes,
    "fargpud-settings.md": fargpud_settings,
    "errors.md": error_page,
    "metrics.md": metrics_page,
}
