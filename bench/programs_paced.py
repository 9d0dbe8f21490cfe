"""B13: programs that carry much over a line of a fixed rate, beside what they take locally or what the line takes for
their bytes."""

import contextlib
import dataclasses
import statistics

from program_steps import Program, command_of, compared, in_processes, row_of, settings_of
from machine import Transport
from rounds import field, spread

GIGABITS = (10, 25)
RTTS = (0.2, 1, 5)  # ms
PROGRAMS = {"W9": Program(("W9.one stream",)),
            "W12": Program(("W12.state_dict", "W12.load_state_dict", "W12.safetensors"))}


@dataclasses.dataclass(frozen=True)
class Line(Transport):
    gigabits: float = 0

    @property
    def rate(self):
        return self.gigabits * 1e9 / 8


def lines(bench):
    """The lines of each rate and round trip time, by names of their own."""
    machine, found = bench.machine, []
    for gigabits in GIGABITS:
        for rtt in RTTS:
            ways = [machine.proxy(to, rtt / 1e3, gigabits * 125) for to in (machine.broker(), machine.socket_server())]
            found.append(Line(f"tcp+{rtt:g}, {gigabits} Gb/s", rtt / 1e3, ways[0], tuple(ways[1].split(":")),
                              gigabits=gigabits))
    return found


def carried(bench, line):
    """What plain sockets carry by a line, of its rate, each way."""
    size = 2 * bench.sizes.proxied_bytes
    with bench.machine.plain(line) as plain:
        return [size / plain.ask("stream", streams=8, direction=direction, bytes=size, count=3)["copy"] / line.rate
                for direction in ("htod", "dtoh")]


def run(bench, command=None):
    places = [("B13", f"tcp+{rtt:g}", f"{row}, {gigabits} Gb/s") for row in PROGRAMS for gigabits in GIGABITS
              for rtt in RTTS]
    with bench.attempt(*places):
        every = lines(bench)
        parts = {line: carried(bench, line) for line in every}
        smaller = dataclasses.replace(bench,
                                      sizes=dataclasses.replace(bench.sizes,
                                                                checkpoint_bytes=bench.sizes.paced_checkpoint_bytes))
        for row, program in PROGRAMS.items():
            with bench.attempt(*(place for place in places if place[2].startswith(f"{row},"))):
                paced(smaller, row, program, every, parts, command or command_of(program))


def paced(bench, row, program, every, parts, command):
    failed, sets = {}, []
    # What is carried is measured: steps copy the same contents again and again, which the host would know.
    settings = settings_of(bench, program) | {"FARGPU_CONTENT_CACHE": "off"}
    for _ in range(bench.processes):
        with contextlib.ExitStack() as stack:
            sets.append(in_processes(bench, stack, program, command, settings, every, failed, beside_sockets=False,
                                     longest={}))
    for line in every:
        case, on = f"{row}, {line.gigabits:g} Gb/s", line.name.split(",")[0]
        wrong = failed.get(line.name) or next((why for one in sets
                                               for (_, at), why in one.failed.items() if at == line.name), "")
        if wrong:
            bench.results.add("B13", on, None, case, note=f"failed: {wrong}")
            continue
        # Of each name: what carries its bytes, seconds of each round.
        bytes_ = {name: sets[0].about[name]["up"] + sets[0].about[name]["down"] for name in program.names}
        local, remote = ({name: [t for one in sets for t in field(one.found[name][where], "seconds")]
                          for name in program.names} for where in ("local", line.name))
        cpu = {name: [t for one in sets for t in field(one.found[name][line.name], "cpu")] for name in program.names}
        bound = {name: [max(n, bytes_[name] / line.rate) for n in local[name]] for name in program.names}
        gigabytes = sum(bytes_.values()) / 1e9
        bench.results.add("B13", on, case=case, rounds=[sum(t) / sum(b)
                                                        for t, b in zip(zip(*remote.values()), zip(*bound.values()))],
                          detail={
            "N": sum(map(statistics.median, local.values())), "T": sum(map(statistics.median, remote.values())),
            "bytes / line": sum(bytes_.values()) / line.rate,
            "bytes": sum(bytes_.values()), "line loses": " and ".join(f"{1 - part:.1%}" for part in parts[line]),
            "round trip": sets[0].pings[line.name],
            "client CPU s/GB": sum(map(statistics.median, cpu.values())) / gigabytes,
            "server CPU s/GB": sum(statistics.median(t for one in sets for t in one.server[name, line.name])
                                   for name in program.names) / gigabytes,
            **{f"{row_of(name)[1]} T / longer of N and bytes / line": spread(
                [t / b for t, b in zip(remote[name], bound[name])]) for name in program.names},
            "first values": "; ".join(dict.fromkeys(compared([one.values[name] for one in sets], line.name)
                                                    for name in program.names))})
