"""Stands in for programs/one_load.py where there is no PyTorch, over the driver API alone. For programs_test.py."""

import ctypes
import json
import mmap
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")


def ok(result):
    if result != 0:
        sys.exit(f"stand_in_load: CUDA error {result}")


device, context, word = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int32()
ok(cuda.cuInit(0))
ok(cuda.cuDeviceGet(ctypes.byref(device), 0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
ok(cuda.cuCtxSetCurrent(context))
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
length = int.from_bytes(mapped[:8], "little")
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
with open(sys.argv[1], "rb") as file:
    address = libc.mmap(None, ctypes.c_size_t(len(mapped)), 1, 2, file.fileno(), ctypes.c_long(0))
begin, cpu, total, value = time.perf_counter(), time.process_time(), 0, 0
for tensor in json.loads(mapped[8:8 + length]).values():
    first, last = tensor["data_offsets"]
    there = ctypes.c_uint64()
    ok(cuda.cuMemAlloc_v2(ctypes.byref(there), ctypes.c_size_t(last - first)))
    ok(cuda.cuMemcpyHtoD_v2(there, ctypes.c_void_p(address + 8 + length + first), ctypes.c_size_t(last - first)))
    ok(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), ctypes.c_uint64(there.value + last - first - 4), ctypes.c_size_t(4)))
    total, value = total + last - first, value + word.value
print(json.dumps({"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu, "bytes": total,
                  "value": value}), flush=True)
time.sleep(1)  # in which the host keeps what it was sent, however busy the machine is
