"""PyTorch over two devices of one host."""

import numpy
import torch
from results import Results
from tensors import data, host, small
from two_devices import copying

results = Results()
first, second = torch.device("cuda:0"), torch.device("cuda:1")


def parallel():
    torch.manual_seed(1)
    model = torch.nn.DataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(),
                                                      torch.nn.Linear(64, 8)).to(first), [0, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for i in range(5):
        optimizer.zero_grad()
        loss = model(data(64, 32, seed=i)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pipeline():
    """The layers of one model on both, with gradients that travel back."""
    torch.manual_seed(1)
    front, back = torch.nn.Linear(32, 64).to(first), torch.nn.Linear(64, 8).to(second)
    back(torch.relu(front(data(16, 32))).to(second)).square().sum().backward()
    return numpy.concatenate([host(front.weight.grad).ravel(), host(back.weight.grad).ravel()])


def scattered():
    parts = torch.cuda.comm.scatter(small(10, 1000), [0, 1])
    summed = torch.cuda.comm.reduce_add([part.clone() for part in parts], 0)
    return numpy.concatenate([host(torch.cuda.comm.gather([part * 2 for part in parts], destination=0)).ravel(),
                              host(summed).ravel()])


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


results.run("devices", lambda: [torch.cuda.device_count() >= 2, torch.cuda.can_device_access_peer(0, 1),
                                torch.cuda.can_device_access_peer(1, 0)])
for case in (*copying(first, second), parallel, pipeline, scattered, graph_on_second):
    results.run(case.__name__, case)
results.write()
