"""NVIDIA's CUDA samples: which run remotely as they run locally."""

import concurrent.futures
import json
import os
import re
import shutil

from suite import JOBS

SECONDS = 100  # for one run of a sample
WANTED = 0.98  # of those that pass locally

UNIT = r"(?:m|u|n|micro|milli)?s(?:ec(?:ond)?s?)?(?:ecs)?|Hz|[KMG]Hz|[KMGT]?B(?:ytes)?/s(?:ec)?|[kMGT]?(?:FLOPS?|flops?|Flops?|FLOP/s|Flop/s|flop/s)"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
TIMINGS = [
    (re.compile(rf"{NUMBER}\s*\(?(?:{UNIT})\b"), "# unit"),  # 1.25 ms
    (re.compile(rf"((?:[Tt]ime|[Tt]hroughput|[Bb]andwidth|[Pp]erformance|[Ee]lapsed|[Ss]peed|Gflop|GFLOP|GB/s|MB/s|msec|usec|clocks?|cycles)[^\n:=]*[:=]\s*)"
                rf"{NUMBER}"), r"\1#"),  # time = 1.25
    (re.compile(r"\b0x[0-9a-fA-F]+"), "address"),
]


def normalised(text):
    """Output without timings and addresses."""
    for pattern, replacement in TIMINGS:
        text = pattern.sub(replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def without_numbers(text):
    return re.sub(NUMBER, "#", normalised(text))


def passes(code, text):
    """Samples check their own results. Some say FAILED and still end with 0; one fails an assertion on purpose, and says so in the end."""
    complains = re.search(r"\bFAIL(ED|URE)?\b|\bfailed\b|CUDA error", text) and not re.search(r"completed, returned OK", text)
    return code == 0 and not complains


def last_words(code, text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("fargpu")]
    telling = [line for line in lines if re.search(r"error|fail|waiv|require|support|mismatch|not ", line, re.I)]
    return f"exit code {code}: {(said or telling or lines or ['no output'])[-1][:200]}"


class Samples:
    def __init__(self, suite):
        self.suite = suite
        self.folder = os.path.join(suite.stage, "samples")
        listing = os.path.join(self.folder, "samples.json")
        self.known = json.load(open(listing)) if os.path.exists(listing) else {"staged": {}, "left_out": {}}
        self.environment = {"LD_LIBRARY_PATH": suite.library_path()}

    def names(self, on_two=False):
        """Those staged; without those that are about two devices, or these alone."""
        two = {"simpleP2P", "streamOrderedAllocationP2P", "simpleMultiGPU", "MonteCarloMultiGPU", "p2pBandwidthLatencyTest"}
        return sorted((name for name in self.known["staged"] if not on_two or name in two), key=str.lower)

    def once(self, name, kind):
        """(exit code, output) of one run, in a folder of its own."""
        place = os.path.join(self.suite.out, "samples", kind, name)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(os.path.join(self.folder, name), place)
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

    def run(self, on_two=False):
        names = self.names(on_two)
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            outcomes = dict(zip(names, pool.map(self.compare, names)))
        local = [name for name, (outcome, _) in outcomes.items() if outcome != "not local"]
        equal = [name for name in local if outcomes[name][0] == "equal"]
        title = "samples of two devices" if on_two else "samples"
        self.write_table(outcomes, len(equal), len(local), os.path.join(self.suite.out, title.replace(" ", "_") + ".md"))
        for name, (outcome, reason) in outcomes.items():
            if outcome == "different":
                print(f"{title}: {name}: {reason}", flush=True)
        self.suite.row(title, bool(local) and len(equal) >= WANTED * len(local),
                       f"{len(equal)} of {len(local)} that pass locally are equal remotely; not {' '.join(sorted(set(local) - set(equal)))}")

    def write_table(self, outcomes, equal, local, path):
        lines = ["| sample | outcome | reason |", "|---|---|---|"]
        for name, (outcome, reason) in outcomes.items():
            if outcome != "equal" or reason:
                text = {"equal": "equal", "different": "not equal", "not local": "fails locally"}[outcome]
                lines.append(f"| {name} | {text} | {reason.replace('|', chr(92) + '|')} |")
        reasons = {}
        for name, reason in self.known["left_out"].items():
            reasons.setdefault(reason, []).append(name)
        lines += [f"| {', '.join(sorted(names))} | left out | {reason.replace('|', chr(92) + '|')} |" for reason, names in sorted(reasons.items())]
        with open(path, "w") as file:
            file.write(f"{equal} of {local} samples that pass locally pass remotely with the same output.\n\n" + "\n".join(lines) + "\n")
