"""A relay between clients and a broker, whose connections a test breaks."""

import contextlib
import socket
import struct
import threading


class Proxy:
    def __init__(self, broker):
        self._to = broker.port
        self._lock = threading.Lock()
        self._pairs = []
        self._refusing = False
        self._muted = False
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
                pair = (near, far)
                with self._lock:
                    self._pairs.append(pair)
                for one, other in (pair, pair[::-1]):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._relay, args=(one, other, pair), daemon=True).start()

    def _relay(self, one, other, pair):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                with self._lock:
                    muted = self._muted and pair in self._muted
                    self.moved += len(data)
                if not muted:
                    other.sendall(data)
        with contextlib.suppress(OSError):  # also where it was reset, as by the end of a client that had not read all
            other.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """Resets all connections; what is on its way is lost."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _reset(end)

    def mute(self):
        """Nothing comes through the connections of now any more."""
        with self._lock:
            self._muted = list(self._pairs)

    def refuse(self, refusing=True):
        """Lets no further connection through."""
        with self._lock:
            self._refusing = refusing

    def close(self):
        self._listener.close()
        self.cut()


def _reset(end):
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    end.close()
