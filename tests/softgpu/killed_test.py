"""What a killed process leaves of an event that it shared goes when the next process uses the software GPU."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

SHARES = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
device, context, event = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
handle = ctypes.create_string_buffer(64)
INTERPROCESS, DISABLE_TIMING = 4, 2
assert driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and driver.cuCtxSetCurrent(context) == 0
assert driver.cuEventCreate(ctypes.byref(event), INTERPROCESS | DISABLE_TIMING) == 0
assert driver.cuIpcGetEventHandle(handle, event) == 0
print(handle.value.decode(), flush=True)
sys.stdin.read()
"""
INITIALIZES = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).cuInit(0))"


def command(program: str) -> list[str]:
    return [sys.executable, "-c", program, os.environ["SOFTGPU_LIBRARY"]]


class Killed(unittest.TestCase):
    def test_event_goes(self):
        with subprocess.Popen(command(SHARES), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            event = Path("/dev/shm") / process.stdout.readline().strip()
            self.assertTrue(event.is_file())
            subprocess.run(command(INITIALIZES), check=True)
            self.assertTrue(event.is_file(), "the event of a process that lives")
            process.kill()
        subprocess.run(command(INITIALIZES), check=True)
        self.assertFalse(event.exists())


if __name__ == "__main__":
    unittest.main()
