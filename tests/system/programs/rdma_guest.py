"""A program that uses a GPU by RDMA, and looks at what that has changed in its own process: handlers of signals, the
environment, the code and the places of functions of libc, its threads, and children that it forks meanwhile. Says "in
order", or what is not. The argument is the path of the client's library."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

FUNCTIONS = ("malloc", "free", "calloc", "realloc", "mmap", "munmap", "mremap", "madvise", "brk", "sbrk", "shmat",
             "shmdt", "getenv", "setenv", "sigaction", "signal", "pthread_create", "fork", "dlopen")


def code():
    """The first bytes of each function as this program finds it."""
    libc = ctypes.CDLL(None)
    places = {name: ctypes.cast(getattr(libc, name), ctypes.c_void_p).value for name in FUNCTIONS}
    return {name: (place, ctypes.string_at(place, 32)) for name, place in places.items()}


class Action(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p)]


def handlers():
    libc, found = ctypes.CDLL(None), {}
    for number in range(1, 65):
        action = Action()
        if libc.sigaction(number, None, ctypes.byref(action)) == 0:
            found[number] = (action.handler, action.flags)
    return found


def environment():
    """As libc has it, which need not be what Python remembers."""
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    values = []
    while environ[len(values)]:
        values.append(environ[len(values)])
    return values


def threads_that_take_signals():
    """Ids of threads of others than Python that could be given a signal of the program's."""
    own = {thread.native_id for thread in threading.enumerate()}
    taking = []
    for task in os.listdir("/proc/self/task"):
        if int(task) in own:
            continue
        try:
            with open(f"/proc/self/task/{task}/status", encoding="ascii") as status:
                blocked = next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk"))
        except FileNotFoundError:
            continue
        if not blocked & 1 << signal.SIGTERM - 1:
            taking.append(task)
    return taking


def use(cuda):
    """Copies there and back, by the session's connection and by its lanes."""
    context, device = ctypes.c_void_p(), ctypes.c_uint64()
    size = 16 << 20
    calls = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
             cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(size))]
    sent, got = ctypes.create_string_buffer(os.urandom(size), size), ctypes.create_string_buffer(size)
    calls.append(cuda.cuMemcpyHtoD_v2(device, sent, ctypes.c_size_t(size)))
    calls.append(cuda.cuMemcpyDtoH_v2(got, device, ctypes.c_size_t(size)))
    return calls, sent.raw == got.raw


def child(number):
    """What a worker of a DataLoader does: it computes, and CUDA is not for it."""
    return sum(bytearray(1 << 20)) + number, ctypes.CDLL(sys.argv[1]).cuInit(0)


def main():
    faults = []
    before = handlers(), environment(), code()
    cuda = ctypes.CDLL(sys.argv[1])
    calls, same = use(cuda)
    if any(calls) or not same:
        faults.append(f"the calls gave {calls}, and the bytes are {'the same' if same else 'others'}")
    with open("/proc/self/maps", encoding="ascii") as maps:
        if "libucp.so" not in maps.read():
            faults.append("UCX is not in the process")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for number, (total, result) in enumerate(pool.map(child, range(4))):
            if (total, result) != (number, 3):
                faults.append(f"a child computed {total} and was answered {result}")
    after = handlers(), environment(), code()
    for what, then, now in zip(("a handler", "the environment", "a function"), before, after):
        if then != now:
            faults.append(f"{what} is another: {then} became {now}")
    deadline = time.monotonic() + 10  # Python's own, which have just ended, may not be gone
    while (taking := threads_that_take_signals()) and time.monotonic() < deadline:
        time.sleep(0.01)
    if taking:
        faults.append(f"threads {taking} take the program's signals")
    if cuda.cuCtxSynchronize() != 0:
        faults.append("the session does not live on")
    print("\n".join(faults) or "in order")


main()
