"""NVIDIA's CUDA samples: which run remotely as they run locally."""

import concurrent.futures
import json
import os
import re
import shutil
import tarfile
import tempfile

from suite import JOBS, without_words

SECONDS = 100  # for one run of a sample
WANTED = 0.98  # of those that pass locally

UNIT = r"(?:m|u|n|micro|milli)?s(?:ec(?:ond)?s?)?(?:ecs)?|Hz|[KMG]Hz|[A-Za-z]+/s(?:ec)?|[kMGT]?(?:FLOPS?|flops?|Flops?)"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
TIMINGS = [
    (re.compile(rf"{NUMBER}\s*\(?(?:{UNIT})\b"), "# unit"),  # 1.25 ms
    (re.compile(r"((?:[Tt]ime|[Tt]hroughput|[Bb]andwidth|[Pp]erformance|[Ee]lapsed|[Ss]peed|Gflop|GFLOP|"
                r"[A-Za-z]+/s|msec|usec|clocks?|cycles)[^\n:=]*[:=]\s*)"
                rf"{NUMBER}"), r"\1#"),  # time = 1.25
    (re.compile(r"\b0x[0-9a-fA-F]+"), "address"),
]


MEASURED = re.compile(rf"\((?:{UNIT})\)")  # the heading of a table says what its numbers are
TABLE_ROW = re.compile(rf"\s*(?:[A-Z]{{3}}\s+)?(?:{NUMBER}\s*)+")


def without_measured_tables(text):
    measured, lines = False, []
    for line in text.splitlines():
        row = TABLE_ROW.fullmatch(line)
        measured = bool(MEASURED.search(line)) or measured and bool(row or re.fullmatch(r"[\sDGPUC\\\d]*", line))
        # Columns are as wide as their numbers.
        lines.append(" ".join(re.sub(NUMBER, "#", line).split()) if row and measured else line)
    return "\n".join(lines)


def normalised(text):
    """Output without timings and addresses."""
    text = without_measured_tables(without_words(text))
    for pattern, replacement in TIMINGS:
        text = pattern.sub(replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def without_numbers(text):
    return re.sub(NUMBER, "#", normalised(text))


def passes(code, text):
    """Samples check their own results. Some say FAILED and still end with 0; one fails an assertion on purpose, and
    says so in the end."""
    text = without_words(text)
    complains = (re.search(r"\bFAIL(ED|URE)?\b|\bfailed\b|CUDA error", text)
                 and not re.search(r"completed, returned OK", text))
    return code == 0 and not complains


def last_words(code, text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("fargpu")]
    telling = [line for line in lines if re.search(r"error|fail|waiv|require|support|mismatch|not ", line, re.I)]
    return f"exit code {code}: {(said or telling or lines or ['no output'])[-1][:200]}"


TWO_DEVICES = {"MonteCarloMultiGPU", "p2pBandwidthLatencyTest", "simpleMultiGPU", "simpleP2P",
               "streamOrderedAllocationP2P"}


class Samples:
    def __init__(self, suite):
        self.suite = suite
        # Without the driver's cache: what it says of a compilation would depend on which program compiled the code
        # first.
        self.environment = {"LD_LIBRARY_PATH": suite.library_path(), "CUDA_CACHE_DISABLE": "1"}

    def once(self, name, kind):
        """(exit code, output) of one run, in a folder of its own."""
        place = os.path.join(self.folder, kind, name)
        shutil.copytree(os.path.join(self.folder, "samples", name), place)
        run = self.suite.remote if kind == "remote" else self.suite.local
        code, _, text = run(f"sample.{name}.{kind}", ["./" + name], SECONDS, self.environment, cwd=place)
        shutil.rmtree(place, ignore_errors=True)
        return code, text

    def compare(self, name):
        """(outcome, reason); the outcomes: equal, different, not local."""
        local = self.once(name, "local")
        if not passes(*local):
            return "not local", last_words(*local)
        remote = self.once(name, "remote")
        if not passes(*remote):
            return "different", last_words(*remote)
        if normalised(local[1]) == normalised(remote[1]):
            return "equal", ""
        again = self.once(name, "again")
        if normalised(again[1]) != normalised(local[1]) and without_numbers(local[1]) == without_numbers(remote[1]):
            return "equal", "but for numbers that vary between local runs too"
        if sorted(normalised(local[1]).splitlines()) == sorted(normalised(remote[1]).splitlines()):
            return "equal", "but for the order of lines"
        pairs = zip(normalised(local[1]).splitlines(), normalised(remote[1]).splitlines())
        first = next((pair for pair in pairs if pair[0] != pair[1]), ("", "another number of lines"))
        return "different", f"`{first[1][:100]}` instead of `{first[0][:100]}`"

    def once_more(self, name, before):
        """Some samples fail beside others: eight cdpAdvancedQuicksort at once ran out of launches in 8 of 48 runs on an
        H200's own driver. What differs the second time as well, without the other samples, is not equal."""
        outcome, reason = self.compare(name)
        return (outcome, reason) if outcome != "equal" else ("equal", f"the second time; the first time: {before}")

    def run(self, only=None):
        """All that are staged, or only some of them."""
        title = "samples of two devices" if only else "samples"
        archive = os.path.join(self.suite.stage, "samples.tar.xz")
        if not os.path.exists(archive):
            self.suite.row(title, False, "none are staged: run tests/samples/for_gpu, then tests/gpu/stage")
            return
        with tempfile.TemporaryDirectory() as self.folder:
            with tarfile.open(archive) as packed:
                packed.extractall(self.folder)
            with open(os.path.join(self.folder, "samples", "samples.json")) as file:
                known = json.load(file)
            names = [name for name in sorted(known["staged"], key=str.lower) if not only or name in only]
            with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
                outcomes = {}
                for name, outcome in zip(names, pool.map(self.compare, names)):
                    outcomes[name] = outcome
                    print(f"{title}: {len(outcomes)} of {len(names)}: {name}: {outcome[0]}", flush=True)
            for name in [name for name in names if outcomes[name][0] == "different"]:
                outcomes[name] = self.once_more(name, outcomes[name][1])
        local = [name for name, (outcome, _) in outcomes.items() if outcome != "not local"]
        equal = [name for name in local if outcomes[name][0] == "equal"]
        path = os.path.join(self.suite.out, title.replace(" ", "_") + ".md")
        self.write_table(path, outcomes, {} if only else known["left_out"], len(equal), len(local))
        for name, (outcome, reason) in outcomes.items():
            if outcome != "equal" or reason.startswith("the second time"):
                print(f"{title}: {name}: {outcome}: {reason}", flush=True)
        self.suite.row(title, bool(local) and len(equal) >= WANTED * len(local),
                       f"{len(equal)} of {len(local)} that pass locally are equal remotely; not "
                       f"{' '.join(sorted(set(local) - set(equal)))}")

    @staticmethod
    def write_table(path, outcomes, left_out, equal, local):
        lines = ["| sample | outcome | reason |", "|---|---|---|"]
        for name, (outcome, reason) in outcomes.items():
            if outcome != "equal" or reason:
                text = {"equal": "equal", "different": "not equal", "not local": "fails locally"}[outcome]
                lines.append(f"| {name} | {text} | {reason.replace('|', chr(92) + '|')} |")
        reasons = {}
        for name, reason in left_out.items():
            reasons.setdefault(reason, []).append(name)
        lines += [f"| {', '.join(sorted(names))} | left out | {reason.replace('|', chr(92) + '|')} |"
                  for reason, names in sorted(reasons.items())]
        with open(path, "w") as file:
            file.write(f"{equal} of {local} samples that pass locally pass remotely with the same output.\n\n" +
                       "\n".join(lines) + "\n")
