"""What the system tests stand on: real brokers, real client programs, raw connections, and waiting with deadlines."""

from . import paths
from .base import SystemTest, fargpu
from .broker import Broker
from .client import Client
from .process import PATIENCE, Process, wait_gone, wait_until
from .wire import fake_broker

__all__ = ["Broker", "Client", "PATIENCE", "Process", "SystemTest", "fake_broker", "fargpu", "paths", "wait_gone",
           "wait_until"]
