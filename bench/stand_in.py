"""Stands in for programs/workloads.py where there is no PyTorch: the same questions, over the driver API alone. For smoke_test.py."""

import ctypes
import json
import sys
import time

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
values = []


def step():
    ok(cuda.cuMemsetD32_v2(memory, len(values), 1024))
    ok(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), memory, 4))
    values.append(word.value)


def steps(count):
    step()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    seconds = (time.perf_counter() - begin) / count
    return {"made": count + 1, "seconds": seconds, "step": seconds, "step_p99": seconds, "cpu": 0.0}


steps(2)
print(json.dumps({"ready": 1}), flush=True)
for line in sys.stdin:
    case, count = line.split()
    count = int(count.removeprefix("count="))
    print(json.dumps(steps(count) if case == "steps" else {"values": values[:count]}), flush=True)
