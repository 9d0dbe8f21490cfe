"""PyTorch: torch.compile, also with CUDA graphs. Triton compiles its kernels on the client."""

import torch
from results import Results

results = Results()
dev = "cuda"


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dev)


def function(x, w):
    return torch.nn.functional.gelu(x @ w + 1).softmax(-1).sum(0)


results.run("eager", lambda: function(data(64, 128), data(128, 256, seed=1)).cpu().numpy())
results.run("compiled", lambda: torch.compile(function)(data(64, 128), data(128, 256, seed=1)).cpu().numpy())


def trained():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(dev)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for i in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(compiled(data(32, 64, seed=i)), torch.arange(32, device=dev) % 10)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


results.run("trained", trained)


def graphs():
    compiled = torch.compile(function, mode="reduce-overhead")
    for i in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        out = compiled(data(64, 128, seed=i), data(128, 256, seed=1)).clone()
    return out.cpu().numpy()


results.run("cuda_graphs", graphs)
results.write()
