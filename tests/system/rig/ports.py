"""Ports of this machine on which nobody listens."""

import random
import socket
from pathlib import Path


def free_port():
    """A port that is to be listened at later. It is none of those that the kernel gives to connections that programs
    make: one of these may be taken by then."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    for port in random.sample(range(first // 2, first), 100):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError("a hundred ports were tried, and all are in use")
