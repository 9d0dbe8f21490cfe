"""PyTorch: several streams, events and threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy
import torch
from results import Results
from tensors import data, host, small

results = Results()


def threads_with_streams():
    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = small(200, 200, seed=seed)
            for _ in range(50):
                x = (x @ x).remainder(7)
            return host(x)

    with ThreadPoolExecutor(8) as pool:
        return numpy.stack(list(pool.map(work, range(16))))


def threads_on_default_stream():
    def work(seed):
        x = small(1000, seed=seed)
        for i in range(200):
            x = (x + i).remainder(101)
        return float(x.sum().item())

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(work, range(32)))


def backward_in_threads():
    def work(seed):
        w = data(64, 64, seed=seed).requires_grad_()
        torch.tanh(data(64, 64) @ w).sum().backward()
        return host(w.grad)

    with ThreadPoolExecutor(4) as pool:
        return numpy.stack(list(pool.map(work, range(8))))


def chain():
    """Streams that wait for each other in a ring."""
    streams = [torch.cuda.Stream(priority=-(i % 2)) for i in range(5)]
    x = torch.zeros(1 << 16, device="cuda")
    event = torch.cuda.Event()
    event.record()
    for i in range(100):
        stream = streams[i % 5]
        stream.wait_event(event)
        with torch.cuda.stream(stream):
            x.mul_(3).add_(i).remainder_(1009)
            event = torch.cuda.Event()
            event.record()
    event.synchronize()
    return host(x[:100])


def event_states():
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(200_000_000)
    end.record()
    was_pending = not end.query()
    end.synchronize()
    return [was_pending, end.query(), begin.elapsed_time(end) > 1]


def producer_and_consumer():
    """One thread fills, another one uses, with events between them."""
    import queue

    blocks, out = queue.Queue(4), []

    def produce():
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(50):
                x = torch.full((10000,), float(i), device="cuda")
                event = torch.cuda.Event()
                event.record()
                blocks.put((x, event))
        blocks.put(None)

    def consume():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while (item := blocks.get()) is not None:
                x, event = item
                stream.wait_event(event)
                out.append((x * 2).sum())
                x.record_stream(stream)
            stream.synchronize()

    threads = [threading.Thread(target=target) for target in (produce, consume)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    return [float(value) for value in out]


def external_stream():
    stream = torch.cuda.Stream()
    same = torch.cuda.ExternalStream(stream.cuda_stream)
    with torch.cuda.stream(same):
        x = small(1000) * 3
    stream.synchronize()
    return host(x)


def spawned_threads():
    """Many threads that come and go."""
    out = [0.0] * 64

    def work(i):
        out[i] = float((small(100, seed=i) + i).sum().item())

    for first in range(0, 64, 16):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(first, first + 16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return out


def interpreter_forks():
    """jit.fork: work that TorchScript's own threads do."""
    @torch.jit.script
    def both(x):
        first = torch.jit.fork(torch.relu, x)
        second = torch.tanh(x)
        return torch.jit.wait(first) + second

    return host(both(data(100, 100)))


def pinned_in_threads():
    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            source = torch.full((100000,), float(i)).pin_memory()
            target = torch.empty(100000).pin_memory()
            target.copy_(source.to("cuda", non_blocking=True) * 2, non_blocking=True)
            torch.cuda.current_stream().synchronize()
            return float(target.sum())

    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(work, range(24)))


for case in (threads_with_streams, threads_on_default_stream, backward_in_threads, chain, event_states,
             producer_and_consumer,
             external_stream, spawned_threads, interpreter_forks, pinned_in_threads):
    results.run(case.__name__, case)
results.write()
