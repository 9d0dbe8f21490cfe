"""A relay between clients and a broker, whose connections a test breaks."""

import contextlib
import select
import socket
import struct
import threading
import time


class Proxy:
    def __init__(self, broker):
        self._to = broker.port
        self._lock = threading.Lock()
        self._pairs = []
        self._refusing = False
        self._muted = False
        self._life = None
        self.moved = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.pool = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                with self._lock:
                    refused = self._refusing
                try:
                    if refused:
                        raise OSError
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    _reset(near)
                    continue
                pair = _Pair(near, far)
                with self._lock:
                    self._pairs = [*(known for known in self._pairs if not known.ended), pair]
                for one, other in ((near, far), (far, near)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._relay, args=(one, other, pair), daemon=True).start()

    def _relay(self, one, other, pair):
        try:
            while data := _receive(one):
                with self._lock:
                    muted = self._muted and pair in self._muted
                    self.moved += len(data)
                    ends = self._life is not None and self._life <= len(data)
                    if ends:
                        data = data[:self._life]
                    if self._life is not None:
                        self._life = None if ends else self._life - len(data)
                if pair.broken:
                    break
                if not muted:
                    _send(other, data, pair)
                if ends:
                    self.cut()
            if not pair.broken:
                other.shutdown(socket.SHUT_RDWR)
        except OSError:  # either end was reset: so is the other
            pair.reset()
        pair.leave()

    def cut(self):
        """Resets all connections; what is on its way is lost."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.reset()

    def cut_after(self, size):
        """Resets all connections once so many bytes more have come through."""
        with self._lock:
            self._life = size

    def mute(self):
        """Nothing comes through the connections of now any more."""
        with self._lock:
            self._muted = list(self._pairs)

    def refuse(self, refusing=True):
        """Lets no further connection through."""
        with self._lock:
            self._refusing = refusing

    def quiet(self):
        """Whether nothing has come for a while, and clients have read what came."""
        moved = self.moved
        time.sleep(0.2)
        return moved == self.moved and self._unread() == 0

    def _unread(self):
        with open("/proc/net/tcp", encoding="ascii") as table:
            rows = [row.split() for row in table][1:]
        return sum(int(queues.split(":")[1], 16) for _, _, remote, _, queues, *_ in rows
                   if remote.endswith(f":{self.port:04X}"))

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts, which closing would leave behind
        self._listener.close()
        self.cut()


class _Pair:
    """Both ends of a relayed connection. They are closed when neither relay uses them any more: until then no other
    connection can have their descriptors."""

    def __init__(self, near, far):
        self._ends = (near, far)
        self._lock = threading.Lock()
        self._relays = 2
        self.broken = False

    @property
    def ended(self):
        return self._relays == 0

    def reset(self):
        self.broken = True
        with self._lock:
            for end in self._ends if self._relays else ():
                _abandon(end)

    def leave(self):
        with self._lock:
            self._relays -= 1
            for end in self._ends if not self._relays else ():
                end.close()


def _send(end, data, pair):
    """All of it, unless the connection is broken meanwhile."""
    while data and not pair.broken:
        if select.select([], [end], [], 0.05)[1]:
            data = data[end.send(data, socket.MSG_DONTWAIT):]


def _receive(end):
    try:
        return end.recv(1 << 16)
    except BrokenPipeError:  # closed in order, and reset because something was sent there since
        return b""


def _abandon(end):
    """Wakes the threads that use it; closing it resets the connection."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RD)  # in the other direction it would end the connection in order


def _reset(end):
    _abandon(end)
    end.close()
