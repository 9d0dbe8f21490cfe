"""What test cases share: things they start, which end with them."""

import contextlib
import os
import signal
import unittest

from . import paths
from .broker import Broker
from .client import Client
from .process import Process, run, take_sanitizer_reports
from .wire import Connection


class SystemTest(unittest.TestCase):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.addCleanup(self.check_sanitizers)  # registered first, so it comes last, when everything has ended

    def check_sanitizers(self):
        reports = take_sanitizer_reports()
        self.assertFalse(reports, "\n".join(reports))

    def broker(self, *options, **more):
        broker = Broker(*options, **more)
        self.addCleanup(broker.close)
        return broker

    def client(self, broker, *commands, **more):
        client = Client(broker, *commands, **more)
        self.addCleanup(client.close)
        return client

    def start(self, arguments, **more):
        process = Process(arguments, **more)
        self.addCleanup(process.close)
        return process

    def connection(self, broker):
        connection = Connection(broker.port)
        self.addCleanup(connection.close)
        return connection

    def end_later(self, pid):
        """A process that its parent may leave behind: it ends with the test. Held by descriptor, which no other process
        can take."""
        handle = os.pidfd_open(pid)

        def end():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)

        self.addCleanup(end)

    def worker_of(self, broker, client):
        """Process id of the worker that serves a client."""
        pid = int(broker.log("session started", pid=client.pid)["worker"])
        self.end_later(pid)
        return pid

    def assert_lives(self, client, name="a"):
        """A session that is as it should be: its memory holds what was put there, and calls work."""
        self.assertEqual(client.ask(f"check {name}"), "SUCCESS same")
        self.assertEqual(client.ask("sync"), "SUCCESS")


def fargpu(*arguments, pool=None, env=None, **more):
    """The command line tool, run to its end."""
    return run([paths.FARGPU, *arguments], env={"FARGPU_POOL": pool, **(env or {})}, **more)
