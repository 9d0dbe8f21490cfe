"""The protocol from below: frames and control messages as bytes, right ones and wrong ones.

The `capnp` tool makes messages of text and the other way round, after the same schema that the product is built
with."""

import ast
import contextlib
import functools
import re
import socket
import struct
import subprocess
import threading

from . import paths
from .process import PATIENCE

# protocol/frame.h: message_bytes, bulk_bytes, sequence, confirmed, kind, opcode, thread, subject, detail
_HEADER = struct.Struct("<IIIIHHIII")
CONTROL, CALL, REPLY, DATA, CONFIRM, HEARTBEAT = range(1, 7)
WANTS_REPLY = 1
_SCHEMA = paths.SOURCE / "protocol" / "control.capnp"
# The field by which hello, its answer and attach say the version of the protocol.
VERSION = "protocolVersion = " + re.search(r"^const protocolVersion :UInt32 = (\d+);", _SCHEMA.read_text(),
                                           re.MULTILINE)[1]


def _capnp(verb, data, schema=_SCHEMA, root="Control"):
    command = ["capnp", verb, "--flat", "-I", paths.BUILD / "capnproto" / "src", "-I", _SCHEMA.parent, schema, root]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def worker_message(text):
    """The bytes of a WorkerMessage that is written as text."""
    return _capnp("encode", text.encode(), paths.SOURCE / "server" / "worker_link.capnp", "WorkerMessage")


@functools.lru_cache(maxsize=None)
def control(text):
    """The bytes of a Control message that is written as text."""
    return _capnp("encode", text.encode())


def control_text(message):
    """A Control message as text."""
    return _capnp("decode", message).decode()


def data_of(field, text):
    """What a field of type Data holds in a message's text, in hexadecimal digits, as `capnp` reads all of it: not all
    that it writes between quotes it reads again."""
    digits, quoted = re.search(rf'\b{field} = (?:0x"([0-9a-f ]*)"|("(?:[^"\\]|\\.)*"))', text).groups()
    return digits.replace(" ", "") if digits is not None else ast.literal_eval("b" + quoted).hex()


def frame(message=b"", kind=CONTROL, sequence=1, bulk=b"", opcode=0, thread=1, subject=0, detail=0, message_bytes=None,
          bulk_bytes=None):
    """A frame; the lengths are those of what is in it unless others are given."""
    header = _HEADER.pack(len(message) if message_bytes is None else message_bytes,
                          len(bulk) if bulk_bytes is None else bulk_bytes,
                          sequence, 0, kind, opcode, thread, subject, detail)
    return header + message + bulk + bytes(-len(bulk) % 8)


class Connection:
    """A raw connection to a broker."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.peer = "{}:{}".format(*self.socket.getsockname())
        self._sent = 0

    def send(self, data):
        self.socket.sendall(data)

    def say(self, text):
        """Sends a control message, in its turn."""
        self._sent += 1
        self.send(frame(control(text), sequence=self._sent))

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError(f"the other end closed after {len(data)} of {count} bytes")
            data += part
        return data

    def frame(self):
        """The next frame: (kind, subject, detail, message)."""
        message_bytes, bulk_bytes, _, _, kind, _, _, subject, detail = _HEADER.unpack(self._exactly(_HEADER.size))
        message = self._exactly(message_bytes)
        self._exactly(bulk_bytes + -bulk_bytes % 8)
        return kind, subject, detail, message

    def hear(self):
        """The next control message, as text."""
        return control_text(self.frame()[3])

    def is_closed(self, seconds=PATIENCE):
        """Whether the other end closes the connection in time; what it sends before is of no interest."""
        self.socket.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            try:
                while self.socket.recv(65536):
                    pass
            except ConnectionResetError:
                pass
            return True
        return False

    def close(self):
        self.socket.close()


@contextlib.contextmanager
def listener(serve):
    """A service on a port of its own, which treats every connection with serve(connection); gives its pool."""
    server = socket.create_server(("127.0.0.1", 0))

    def one(connection):
        with connection, contextlib.suppress(OSError, struct.error, subprocess.CalledProcessError):
            serve(connection)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield "127.0.0.1:{}".format(server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(PATIENCE)


@contextlib.contextmanager
def deaf_host():
    """A host that lets nobody in: connecting to it gets no answer."""
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # what the system accepts by itself
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(deaf.getsockname())
        yield "127.0.0.1:{}".format(deaf.getsockname()[1])


def fake_broker(**answers):
    """A listener that answers each request by its name (hello=, leaseRequest=, statusRequest=, attach=) with this
    control message, or with these bytes; where it has none it closes."""
    ready = {name: answer if isinstance(answer, bytes) else control(answer) for name, answer in answers.items()}

    def serve(connection):
        sent = 0
        while header := connection.recv(_HEADER.size, socket.MSG_WAITALL):
            request = control_text(connection.recv(_HEADER.unpack(header)[0], socket.MSG_WAITALL))
            name = request.removeprefix("(").split()[0]
            if name not in ready:
                return
            sent += 1
            connection.sendall(frame(ready[name], sequence=sent))

    return listener(serve)
