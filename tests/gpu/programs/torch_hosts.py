"""PyTorch over devices of two hosts; locally the one device stands for both."""

import os

import numpy
import torch
from results import Results
from tensors import data, host, small
from two_devices import copying

results = Results()
count = torch.cuda.device_count()
first, second = torch.device("cuda:0"), torch.device("cuda", min(1, count - 1))


def devices():
    return count == 2 if "FARGPU_HOSTS" in os.environ else count >= 1


def large_copies():
    x = torch.arange(40 << 20, dtype=torch.int32, device=first)
    y = x.to(second).flip(0)
    return host(y.to(first)[:: 4097])


def strided_copies():
    x = small(1000 * 70).reshape(1000, 70)
    y = torch.zeros(70, 1000, device=second)
    y.copy_(x.t())
    y[:, 100:300].copy_(x[200:400].t())
    return host(y)


def events():
    """A stream of one host waits for work of the other one, and the host for neither."""
    ours, theirs = torch.cuda.Stream(first), torch.cuda.Stream(second)
    x = torch.zeros(1 << 20, device=first)
    torch.cuda.synchronize(first)
    done = torch.cuda.Event()
    with torch.cuda.stream(ours):
        for _ in range(200):
            x.add_(1)
        done.record(ours)
    with torch.cuda.stream(theirs):
        theirs.wait_event(done)
        y = x.to(second, non_blocking=True) * 3
    theirs.synchronize()
    return host(y[:100])


def pinned():
    """Pinned memory goes to both devices, and is filled from both."""
    memory = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
    back = torch.empty(2, 1 << 20).pin_memory()
    for place, device in enumerate((first, second)):
        on_device = memory.to(device, non_blocking=True) + place
        back[place].copy_(on_device, non_blocking=True)
    torch.cuda.synchronize(first)
    torch.cuda.synchronize(second)
    return host(back)


def split_model():
    """The layers of one model on both, trained, with gradients that travel back."""
    torch.manual_seed(1)
    front = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh()).to(first)
    back = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).to(second)
    optimizer = torch.optim.Adam([*front.parameters(), *back.parameters()], lr=0.01)
    losses = []
    for i in range(10):
        optimizer.zero_grad()
        loss = back(front(data(64, 32, seed=i)).to(second)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def micro_batches():
    """A pipeline: the second half works on one micro-batch while the first half works on the next."""
    torch.manual_seed(2)
    front, back = torch.nn.Linear(64, 512).to(first), torch.nn.Linear(512, 16).to(second)
    inputs = data(256, 64).chunk(8)
    moved = [torch.relu(front(part)).to(second, non_blocking=True) for part in inputs]
    outputs = [back(part) for part in moved]
    torch.stack([output.square().sum() for output in outputs]).sum().backward()
    return numpy.concatenate([host(torch.cat(outputs)).ravel(), host(front.weight.grad).ravel()])


def graph_on_second():
    with torch.cuda.device(second):
        x = torch.zeros(1000, device=second)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(3)
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize(second)
        return host(x)


for case in (devices, *copying(first, second), large_copies, strided_copies, events, pinned, split_model,
             micro_batches, graph_on_second):
    results.run(case.__name__, case)
results.write()
