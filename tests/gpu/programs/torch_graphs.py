"""PyTorch: CUDA graphs, captured by hand and by torch.compile's mode reduce-overhead."""

import numpy
import torch
import torch.nn.functional as F
from results import Results
from tensors import data, error_of, host, small

results = Results()


def warm(function, times=3):
    """What capturing asks for: the work done before, on a stream aside."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(side)


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to("cuda")


def shared_pool():
    """Two graphs whose memory is one pool, replayed one after the other."""
    x = small(128, 128)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    warm(lambda: (x @ x).relu())
    with torch.cuda.graph(first):
        y = (x @ x).relu()
    with torch.cuda.graph(second, pool=first.pool()):
        z = y.sum(dim=0) * 2
    for i in range(5):
        x.copy_(small(128, 128, seed=i))
        first.replay()
        second.replay()
    return host(z)


def whole_step():
    """A training step, optimizer and all, as one graph."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, target = data(32, 64), torch.arange(32, device="cuda") % 10

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    warm(step)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for i in range(10):
        x.copy_(data(32, 64, seed=i))
        graph.replay()
        losses.append(loss.item())
    return losses


def graphed_callables():
    model = network()
    graphed = torch.cuda.make_graphed_callables(model, (data(32, 64).requires_grad_(),))
    out = []
    for i in range(4):
        x = data(32, 64, seed=i).requires_grad_()
        graphed(x).square().sum().backward()
        out.append(host(x.grad))
    return numpy.stack(out)


def random_numbers():
    """Each replay draws new numbers from the generator."""
    torch.cuda.manual_seed(11)
    warm(lambda: torch.rand(1000, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = F.dropout(torch.rand(1000, device="cuda"), 0.3)
    out = []
    torch.cuda.manual_seed(12)
    for _ in range(3):
        graph.replay()
        out.append(host(drawn.clone()))
    return numpy.stack(out)


def forks_inside():
    """Streams that a capture forks to and joins."""
    x = small(256, 256)
    side = [torch.cuda.Stream() for _ in range(3)]
    graph = torch.cuda.CUDAGraph()
    warm(lambda: x @ x)
    with torch.cuda.graph(graph):
        parts = []
        begin = torch.cuda.Event()
        begin.record()
        for i, stream in enumerate(side):
            stream.wait_event(begin)
            with torch.cuda.stream(stream):
                parts.append(x @ x + i)
        for stream in side:
            torch.cuda.current_stream().wait_stream(stream)
        total = parts[0] + parts[1] * 2 + parts[2] * 3
    graph.replay()
    x.copy_(small(256, 256, seed=4))
    graph.replay()
    return host(total)


def copies_inside():
    """Copies from and to pinned memory, which a replay reads and writes anew."""
    source, target = torch.zeros(4096).pin_memory(), torch.zeros(4096).pin_memory()
    x = torch.zeros(4096, device="cuda")
    graph = torch.cuda.CUDAGraph()
    warm(lambda: x.copy_(source, non_blocking=True))
    with torch.cuda.graph(graph):
        x.copy_(source, non_blocking=True)
        x.mul_(3)
        target.copy_(x, non_blocking=True)
    out = []
    for i in range(5):
        source.fill_(i + 1)
        graph.replay()
        torch.cuda.synchronize()
        out.append(target.clone().numpy())
    return numpy.stack(out)


def many():
    """Many graphs alive at once, replayed in another order."""
    x, graphs = small(64, 64), []
    pool = torch.cuda.graph_pool_handle()
    warm(lambda: x + 1)
    for i in range(30):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            x.mul_(2).add_(i).remainder_(97)
        graphs.append(graph)
    for graph in reversed(graphs):
        graph.replay()
    torch.cuda.synchronize()
    return host(x)


def other_stream():
    x = small(1000)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    warm(lambda: x + 1)
    with torch.cuda.graph(graph):
        x.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(20):
            graph.replay()
    stream.synchronize()
    return host(x)


def function(x, w):
    return F.gelu(x @ w + 1).softmax(-1).sum(0)


def compiled_inference():
    compiled = torch.compile(function, mode="reduce-overhead")
    out = []
    for rows in (64, 32, 64, 32, 64, 32, 64):  # a graph for each shape
        torch.compiler.cudagraph_mark_step_begin()
        out.append(host(compiled(data(rows, 128, seed=rows), data(128, 256, seed=1)).clone()))
    return numpy.stack(out)


def compiled_training():
    model = network()
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for i in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(data(32, 64, seed=i)), torch.arange(32, device="cuda") % 10)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def broken_capture():
    """Waiting during a capture ends it with an error, after which work goes on."""
    x = small(100)

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (x + 1).sum().item()

    error = error_of(capture)
    return numpy.array([error != "", float((x * 2).sum().item())])


for case in (shared_pool, whole_step, graphed_callables, random_numbers, forks_inside, copies_inside, many,
             other_stream,
             compiled_inference, compiled_training, broken_capture):
    results.run(case.__name__, case)
results.write()
