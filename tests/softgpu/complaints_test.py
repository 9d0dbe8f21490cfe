"""What the software GPU cannot do it says on stderr, once, however often it is asked: a library may try hundreds of
images."""

import os
import subprocess
import sys
import unittest

PROGRAM = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and driver.cuCtxSetCurrent(context) == 0
for word in (b"one", b"other", b"one") * 3:
    print(driver.cuModuleLoadData(ctypes.byref(module), b".version 8.0\\n.target sm_90\\n.address_size 64\\n" + word))
"""


class Complaints(unittest.TestCase):
    def test_each_is_said_once(self):
        done = subprocess.run([sys.executable, "-c", PROGRAM, os.environ["SOFTGPU_LIBRARY"]], capture_output=True,
                              text=True, check=True)
        self.assertEqual(done.stdout.split(), ["218"] * 9)  # CUDA_ERROR_INVALID_PTX, each time
        self.assertRegex(done.stderr, r"\Afargpu-softgpu: PTX .*one.*\nfargpu-softgpu: PTX .*other.*\n\Z")


if __name__ == "__main__":
    unittest.main()
