"""Stands in for programs/workloads.py where there is no PyTorch: the same questions, over the driver API alone. For
programs_test.py."""

import ctypes
import itertools
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs"))
import steps  # noqa: E402

cuda = ctypes.CDLL("libcuda.so.1")


def ok(result):
    if result != 0:
        sys.exit(f"stand_in: CUDA error {result}")


device, context, memory, word = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
ok(cuda.cuInit(0))
ok(cuda.cuDeviceGet(ctypes.byref(device), 0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
ok(cuda.cuCtxSetCurrent(context))
ok(cuda.cuMemAlloc_v2(ctypes.byref(memory), 4096))


def fetch(bytes_):
    """A step that copies so many bytes to the device and back."""
    sent = (ctypes.c_char * bytes_)()
    there = ctypes.c_uint64()
    ok(cuda.cuMemAlloc_v2(ctypes.byref(there), bytes_))

    def step():
        ok(cuda.cuMemcpyHtoD_v2(there, sent, bytes_))
        ok(cuda.cuMemcpyDtoH_v2(sent, there, bytes_))
        return sent[0][0]

    return steps.Workload(step, up=bytes_, down=bytes_)


def items():
    made = itertools.count()

    def step():
        ok(cuda.cuMemsetD32_v2(memory, next(made), 1024))
        ok(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), memory, 4))
        return word.value

    return step


class Builders(dict):
    """Whatever workload is named: W9, W11 and W12 copy, W15.any does not begin, and the others read four bytes."""

    def __missing__(self, name):
        if name == "W15.any":
            raise LookupError("there is no workload")
        return lambda: fetch(1 << 16) if name.startswith(("W9", "W11", "W12")) else items()


steps.main(Builders(), lambda: None)  # each step has waited for its end
