"""PyTorch's allocators, as PYTORCH_CUDA_ALLOC_CONF chooses them: the caching one, with expandable segments,
cudaMallocAsync."""

import os

import numpy
import torch
from results import Results
from tensors import error_of, host, small

results = Results()
settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
MIB = 1 << 20


def churn():
    """Blocks of all sizes come and go; none may touch another."""
    numbers = numpy.random.default_rng(5)
    held, sums = {}, []
    for i in range(400):
        if held and numbers.random() < 0.45:
            key = list(held)[int(numbers.integers(len(held)))]
            tensor = held.pop(key)
            sums.append(int(tensor.sum(dtype=torch.int64).item()) - (key % 100) * tensor.numel())
        else:
            held[i] = torch.full((int(2 ** numbers.uniform(0, 24)),), i % 100, dtype=torch.uint8, device="cuda")
    sums += [int(tensor.sum(dtype=torch.int64).item()) - (key % 100) * tensor.numel() for key, tensor in held.items()]
    assert not any(sums)
    return sums


def statistics():
    """What the allocator says it holds, after the same calls."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    held = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (1, 5, 20, 33, 64)]
    del held[1], held[2]
    return [torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before]


def emptied():
    """Blocks that nobody holds are given back when asked."""
    held = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    kept = torch.cuda.memory_reserved()
    del held
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return [kept >= 1 << 30, torch.cuda.memory_reserved() <= kept - (1 << 30)]


def growing():
    """One tensor that grows, as key-value caches do."""
    cache = torch.zeros(0, 1024, device="cuda")
    for i in range(60):
        cache = torch.cat([cache, torch.full((64, 1024), float(i), device="cuda")])
    return host(cache.sum(1))


def out_of_memory():
    """Running out is an exception that can be caught, and what was there stays."""
    keep = small(1000)
    error = error_of(lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))
    return [error == "OutOfMemoryError", float((keep + 1).sum().item())]


def limited():
    """Up to a limit of the process's own; then room again after freeing."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.03)
    held, error = [], ""

    def fill():
        for _ in range(1000):
            held.append(torch.ones(256 * MIB, dtype=torch.uint8, device="cuda"))

    error = error_of(fill)
    count = len(held)
    held.clear()
    torch.cuda.set_per_process_memory_fraction(1.0)
    again = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda")
    return [error == "OutOfMemoryError", 0 < count < 1000, int(again.sum(dtype=torch.int64).item())]


def record_stream():
    """A block freed while another stream still reads it."""
    side, sums = torch.cuda.Stream(), []
    for i in range(20):
        x = torch.full((1 << 20,), float(i), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(100000)
            sums.append(x.sum())
        x.record_stream(side)
        del x
        torch.full((1 << 20,), -1.0, device="cuda")
    side.synchronize()
    return [float(value) for value in sums]


def on_streams():
    """A cache of blocks for each stream."""
    streams, out = [torch.cuda.Stream() for _ in range(4)], []
    for i in range(40):
        with torch.cuda.stream(streams[i % 4]):
            out.append((small(1 << 16, seed=i) * 2).sum())
    torch.cuda.synchronize()
    return [float(value) for value in out]


def pinned():
    """Pinned blocks of many sizes, kept and used again."""
    out = []
    for i in range(30):
        block = torch.full((1000 * (i + 1),), float(i)).pin_memory()
        out.append(block.to("cuda", non_blocking=True).sum())
        del block
    return [float(value) for value in out]


def private_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = small(1 << 20)
    y = x + small(1 << 20, seed=1)
    del x, pool
    return host(y[:1000])


def large():
    """More than 4 GiB in one block."""
    x = torch.zeros(5 << 30, dtype=torch.uint8, device="cuda")
    x[-1] = 7
    x[1 << 32] = 9
    return [int(x.sum(dtype=torch.int64).item()), int(x[-1].item())]


cases = [churn, statistics, emptied, growing, out_of_memory, limited, record_stream, on_streams, pinned, large]
if "backend" not in settings:  # pools of one's own are the caching allocator's
    cases.append(private_pool)
if "backend" in settings:
    cases.remove(statistics)  # the driver keeps them there
print(settings, torch.cuda.get_allocator_backend())
results.add("allocator", [ord(letter) for letter in torch.cuda.get_allocator_backend()])
for case in cases:
    results.run(case.__name__, case)
results.write()
