"""NCCL's all-reduce among the GPUs of one host. Usage: all_reduce.py processes|threads [LARGEST_BYTES]

A rank for each device, which is a process or a thread. Prints one line of JSON: for each size the seconds of one
all-reduce among many in a row, whether every rank found the sum, NCCL's version, and by which ways NCCL says that its
channels go."""

import ctypes
import json
import multiprocessing
import os
import queue
import re
import sys
import tempfile
import threading
import time

import torch

FLOAT, SUM = 7, 0  # of nccl.h
SMALLEST, LARGEST = 1 << 10, 1 << 30
RANK_SECONDS = 150


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Nccl:
    """The library that PyTorch has loaded."""

    def __init__(self):
        self.nccl = ctypes.CDLL("libnccl.so.2")
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        result = getattr(self.nccl, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {self.nccl.ncclGetErrorString(result).decode()}")

    def version(self):
        found = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(found))
        return found.value

    def unique_id(self):
        found = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(found))
        return bytes(memoryview(found))


def repeats(size):
    return 200 if size < 1 << 20 else 40 if size <= 1 << 26 else 8


def sizes(largest):
    size = SMALLEST
    while size <= largest:
        yield size
        size *= 4


def rank_of(number, size, unique, largest):
    """{bytes: seconds} of this rank, and whether its sums were right."""
    nccl = Nccl()
    torch.cuda.set_device(number)
    communicator = ctypes.c_void_p()
    nccl.call("ncclCommInitRank", ctypes.byref(communicator), size, UniqueId.from_buffer_copy(unique), number)
    stream = torch.cuda.Stream()
    source = torch.full((largest // 4,), float(number + 1), device="cuda")
    target = torch.zeros_like(source)
    torch.cuda.synchronize()

    def reduce(bytes_):
        nccl.call("ncclAllReduce", ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(target.data_ptr()),
                  ctypes.c_size_t(bytes_ // 4), FLOAT, SUM, communicator, ctypes.c_void_p(stream.cuda_stream))

    seconds, right, expected = {}, True, size * (size + 1) / 2
    for bytes_ in sizes(largest):
        target.zero_()
        torch.cuda.synchronize()
        for _ in range(5):
            reduce(bytes_)
        stream.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats(bytes_)):
            reduce(bytes_)
        stream.synchronize()
        seconds[bytes_] = (time.perf_counter() - begin) / repeats(bytes_)
        summed = target[: bytes_ // 4]
        right = right and bool((summed == expected).all().item())
    nccl.call("ncclCommDestroy", communicator)
    return seconds, right


def answered(answers, number, *arguments):
    try:
        answers.put((number, rank_of(number, *arguments)))
    except Exception as error:  # noqa: BLE001 - which one it is, is the answer
        answers.put((number, f"{type(error).__name__}: {error}"))


def in_processes(count, largest):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    unique = Nccl().unique_id()
    ranks = [context.Process(target=answered, args=(answers, number, count, unique, largest), daemon=True)
             for number in range(count)]
    return collected(ranks, answers)


def in_threads(count, largest):
    answers = queue.Queue()
    unique = Nccl().unique_id()
    return collected([threading.Thread(target=answered, args=(answers, number, count, unique, largest), daemon=True)
                      for number in range(count)], answers)


def collected(ranks, answers):
    for rank in ranks:
        rank.start()
    end = time.monotonic() + RANK_SECONDS
    found = []
    for _ in ranks:
        found.append(answers.get(timeout=max(1, end - time.monotonic()))[1])
        if isinstance(found[-1], str):
            raise RuntimeError(found[-1])
    return found


def main():
    kind, largest = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else LARGEST
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,P2P,SHM,NET,NVLS",
                          NCCL_DEBUG_FILE=os.path.join(folder, "%p"))
        try:
            ranks = {"processes": in_processes, "threads": in_threads}[kind](torch.cuda.device_count(), largest)
            answer = {"ranks": len(ranks),
                      "seconds": {size: max(rank[0][size] for rank in ranks) for size in ranks[0][0]},
                      "right": all(rank[1] for rank in ranks)}
        except Exception as error:  # noqa: BLE001 - which one it is, is the answer
            answer = {"failed": f"{type(error).__name__}: {error}"[:300]}
        said = "".join(open(os.path.join(folder, name), errors="replace").read() for name in os.listdir(folder))
        answer["ways"] = sorted(set(re.findall(r"via (\S+)", said)))
        answer["warnings"] = sorted(set(re.findall(r"NCCL WARN (.*)", said)))[:5]
    answer["version"] = Nccl().version()
    print(json.dumps(answer), flush=True)
    os._exit(0)  # threads of a communicator that failed may be past ending


if __name__ == "__main__":
    main()
