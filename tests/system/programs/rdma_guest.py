"""A program that uses a GPU by RDMA, and looks at what that has changed in its own process: handlers of signals, the
environment, the code and the places of functions of libc, the tables by which its libraries find them, its threads,
what programs that it starts are given, and children that it forks meanwhile, those of a DataLoader among them. Says "in
order", or what is not. The argument is the path of the client's library."""

import ctypes
import hashlib
import multiprocessing
import os
import queue
import signal
import subprocess
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


def tables():
    """What libraries have that is only read, once they are linked: {place: (file, permissions, digest)}. By their
    tables of functions there, their calls of malloc and mmap would be led elsewhere."""
    found = {}
    with open("/proc/self/maps", encoding="ascii") as maps, open("/proc/self/mem", "rb") as memory:
        for line in maps:
            place, permissions, _, _, inode, *name = line.split(None, 5)
            if permissions == "r--p" and inode != "0" and (".so" in name[0] or "/bin/" in name[0]):
                begin, end = (int(address, 16) for address in place.split("-"))
                memory.seek(begin)
                found[place] = name[0].strip(), permissions, hashlib.sha256(memory.read(end - begin)).hexdigest()
    return found


def given_to_programs():
    """The environment and the descriptors of a program that is started."""
    said = subprocess.run(["/bin/sh", "-c", "env; ls /proc/self/fd"], close_fds=False, stdout=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, text=True, check=True).stdout
    return sorted(said.split("\n"))


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


def pin_and_free(cuda):
    """Pinned memory that is freed while a copy from it is on its way, and a fork meanwhile. Says what went wrong."""
    size, faults = 16 << 20, []
    device, got = ctypes.c_uint64(), ctypes.create_string_buffer(size)
    if cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(size)):
        return ["no memory for what is pinned"]
    for number in range(6):
        pinned, sent = ctypes.c_void_p(), os.urandom(size)
        results = [cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(size), 0)]
        ctypes.memmove(pinned, sent, size)
        results.append(cuda.cuMemcpyHtoDAsync_v2(device, pinned, ctypes.c_size_t(size), None))
        child_id = os.fork() if number % 2 else None
        if child_id == 0:
            os._exit(int(ctypes.string_at(pinned, size) != sent))
        if child_id:
            results.append(os.waitpid(child_id, 0)[1])
        results += [cuda.cuMemFreeHost(pinned), cuda.cuMemcpyDtoH_v2(got, device, ctypes.c_size_t(size))]
        if any(results) or got.raw != sent:
            faults.append(f"pinned memory {number} gave {results}")
    return faults


def child(number):
    """What a worker of a DataLoader does: it computes, and CUDA is not for it."""
    return sum(bytearray(1 << 20)) + number, ctypes.CDLL(sys.argv[1]).cuInit(0)


BATCH = 1 << 20


def batches_of(indices, batches):
    """A worker of a DataLoader: it is told which batch, and answers with the memory that it has put it in."""
    for index in iter(indices.get, None):
        batches.put((index, bytes([index]) * BATCH))
    batches.close()
    batches.join_thread()


def load(cuda):
    """What a DataLoader with two workers, pinned memory and a thread that fills it does, while batches are uploaded.
    Says what went wrong."""
    pinned, device = ctypes.c_void_p(), ctypes.c_uint64()
    if cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(BATCH), 0) or \
            cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(BATCH)):
        return ["no memory for batches"]
    fork = multiprocessing.get_context("fork")
    batches, ready = fork.Queue(), queue.Queue(1)
    tellers = [fork.Queue() for _ in range(2)]
    workers = [fork.Process(target=batches_of, args=(teller, batches)) for teller in tellers]
    for worker in workers:
        worker.start()
    for index in range(8):
        tellers[index % 2].put(index)
    for teller in tellers:
        teller.put(None)
    threading.Thread(target=lambda: [ready.put(batches.get()) for _ in range(8)], daemon=True).start()
    faults, got = [], ctypes.create_string_buffer(BATCH)
    for _ in range(8):
        index, batch = ready.get(timeout=30)
        ctypes.memmove(pinned, batch, BATCH)
        results = [cuda.cuMemcpyHtoDAsync_v2(device, pinned, ctypes.c_size_t(BATCH), None),
                   cuda.cuStreamSynchronize(None), cuda.cuMemcpyDtoH_v2(got, device, ctypes.c_size_t(BATCH))]
        if any(results) or got.raw != batch:
            faults.append(f"batch {index} gave {results}")
    for worker in workers:
        worker.join(30)
        if worker.exitcode != 0:
            faults.append(f"a worker of the DataLoader ended with {worker.exitcode}")
    return faults


def ends_of_children(libc):
    """How a child ends that runs the destructors of all libraries: their copies of UCX's things are the parent's."""
    ends = []
    for _ in range(3):
        child_id = os.fork()
        if child_id == 0:
            libc.exit(7)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child_id, 0)[1]))
    return ends


def main():
    faults = []
    given, read_only = given_to_programs(), tables()
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
    faults += load(cuda) + pin_and_free(cuda)
    if (ends := ends_of_children(ctypes.CDLL(None))) != [7, 7, 7]:
        faults.append(f"children end with {ends}")
    calls, same = use(cuda)
    if any(calls) or not same:
        faults.append(f"after that the calls gave {calls}, and the bytes are {'the same' if same else 'others'}")
    now_read_only = tables()
    for place, table in read_only.items():
        if now_read_only.get(place) != table:
            faults.append(f"the tables of {table[0]} at {place} are others")
    if not any("libc.so" in name for name, *_ in read_only.values()):
        faults.append("no tables were found")
    if (now_given := given_to_programs()) != given:
        faults.append(f"programs are given {set(now_given) ^ set(given)}")
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
