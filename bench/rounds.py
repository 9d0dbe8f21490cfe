"""Taking turns, and what is common to the groups."""

import contextlib
import dataclasses
import statistics

from machine import Failed, Machine
from results import Results


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured in a round."""

    batches: int = 200  # of 200 launches each
    launches: int = 20000
    thread_launches: int = 2000  # of each of 8 threads
    calls: int = 2000
    idle_seconds: float = 10
    emptied_caches: int = 200  # of 20 blocks
    bytes: int = 256 << 20
    proxied_bytes: int = 64 << 20
    copies: int = 3
    rows_of_copies: int = 20  # each of 64 small ones
    session_bytes: int = 64 << 20  # of a copy where several sessions copy at once
    several_seconds: float = 0.5  # for which they do
    overlaps: int = 3
    step_seconds: float = 1.0  # of a program's turn, as the local driver takes it
    steps_max: int = 200
    checkpoint_bytes: int = 10**9  # weights that are saved, restored and loaded
    paced_checkpoint_bytes: int = 256 << 20  # of those over a line of a fixed rate
    known_bytes: int = 16 * 10**9  # of weights that the host has had before
    known_cache: str = "auto"  # FARGPU_CONTENT_CACHE for them; so few bytes that no line's rate shows need `on`
    image_bytes: int = 4 << 20
    share_seconds: float = 10  # of tenants beside each other
    device_copy_mib: int = 1024  # of a tenant that copies on the device
    fill_blocks: int = 1056  # of a kernel that fills the device: eight for each multiprocessor of an H200
    fill_rounds: int = 20000  # and what each of their threads does: two tenths of a millisecond of it
    sessions_most: int = 160  # at once
    session_mib: int = 515  # of each of them
    quota_mib: int = 512  # of a session that takes all it can
    evicted_mib: int = 10240  # of a session that is evicted
    turns_mib: int = 0  # of each of two that take turns; 0: 0.7 of the device
    turns_seconds: float = 60
    model_mib: int = 6144  # of each of the models that share a device, about
    context_mib: int = 600  # that the driver takes for a session that does nothing, about
    model_seconds: float = 90  # in which they are asked
    model_pause: float = 8  # between two questions to one of them, on the average
    break_bytes: int = 16 << 20  # of a large copy over connections that break
    breaks: tuple = (40, 10, 1)  # of a session each: resets, resets with a new address, blackholes
    replaced_seconds: float = 5  # of programs between two brokers
    beside_waits: int = 100000  # of a program whose host lives, while another one dies
    pool_hosts: int = 1000  # of 8 devices each
    pool_leases: int = 5000
    pool_queue: int = 200
    pool_grants: int = 100  # one after the other
    pool_seconds: float = 3  # of grants as fast as they go
    pool_minutes: float = 30  # in which its parts die again and again
    pool_clients: int = 200  # meanwhile


TINY = Sizes(
    batches=2, launches=400, thread_launches=20, calls=20, emptied_caches=2, idle_seconds=0.3, bytes=1 << 20,
    proxied_bytes=1 << 20,
    copies=2, rows_of_copies=2, session_bytes=256 << 10, several_seconds=0.05, overlaps=1, step_seconds=0.02,
    steps_max=3,
    checkpoint_bytes=1 << 20, paced_checkpoint_bytes=1 << 20, known_bytes=1 << 20, known_cache="on",
    image_bytes=64 << 10, share_seconds=0.3, device_copy_mib=1, fill_blocks=2,
    fill_rounds=20, sessions_most=3, session_mib=1, quota_mib=32, evicted_mib=64, turns_mib=16, turns_seconds=1,
    model_mib=8, context_mib=0, model_seconds=6, model_pause=1.5, break_bytes=1 << 20, breaks=(6, 3, 1),
    replaced_seconds=0.5,
    pool_hosts=8, pool_leases=40, pool_queue=3, pool_grants=4, pool_seconds=0.2, pool_minutes=0.2, beside_waits=200,
    pool_clients=5)


@dataclasses.dataclass
class Bench:
    machine: Machine
    results: Results
    sizes: Sizes
    rounds: int
    rtts: list
    rate: float | None
    rows: set  # those wanted; empty for all
    processes: int = 1  # sets of them that calls and steps are measured in

    def wants(self, *rows):
        return not self.rows or bool(self.rows & set(rows))

    def places(self, *rows, case=""):
        """Where figures of these rows go, on every transport."""
        return [(row, on, case) for row in rows
                for on in (*self.machine.kinds, *(f"tcp+{rtt:g}" for rtt in self.rtts if "tcp" in self.machine.kinds))]

    @contextlib.contextmanager
    def attempt(self, *places):
        """What cannot be measured becomes a row that says why, and the rest goes on. Places: (row, transport[,
        case])."""
        before = set(self.results.found)
        try:
            yield
        except (Failed, ZeroDivisionError, statistics.StatisticsError) as error:
            for row, on, *case in places:
                if self.wants(row) and f"{row} {case[0] if case else ''} {on}" not in set(self.results.found) - before:
                    self.results.add(row, on, None, *case, note=f"failed: {' '.join(str(error).split())}")


def in_turn(rounds, parts):
    """{name: [answer of each round]} of functions that take turns. Every second round goes backwards, and every two
    rounds another one begins, so that none always follows the same one."""
    names = list(parts)
    found = {name: [] for name in names}
    for i in range(rounds):
        first = i // 2 % len(names)
        order = names[first:] + names[:first]
        for name in reversed(order) if i % 2 else order:
            found[name].append(parts[name]())
    return found


def in_sets(bench, parts):
    """What in_turn() finds in several sets of processes, one after the other. `parts` starts a set: parts(stack) is
    what takes turns."""
    found = {}
    for _ in range(bench.processes):
        with contextlib.ExitStack() as stack:
            for name, answers in in_turn(bench.rounds, parts(stack)).items():
                found.setdefault(name, []).extend(answers)
    return found


def field(answers, name):
    return [answer[name] for answer in answers]


def middle(answers, name):
    return float(statistics.median(field(answers, name)))


def spread(values):
    """The median, and between what the rounds lie, for people."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def ratios(above, below, name, other=None):
    return [a[name] / b[other or name] for a, b in zip(above, below)]
