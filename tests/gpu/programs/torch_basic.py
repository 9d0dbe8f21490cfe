"""PyTorch: one case for each kind of library call."""

import numpy
import torch
import torch.nn.functional as F
from results import Results

results = Results()
dev = "cuda"
torch.backends.cuda.matmul.allow_tf32 = False


def data(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype).to(dev)


def host(tensor):
    return tensor.detach().float().cpu().numpy() if tensor.dtype == torch.bfloat16 else tensor.detach().cpu().numpy()


def graph():
    x = data(256, 256)
    w = data(256, 256, seed=1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            y = torch.relu(x @ w) * 0.1
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = torch.relu(x @ w) * 0.1
        z = y.sum(dim=0)
    for i in range(10):
        x.copy_(data(256, 256, seed=10 + i))
        captured.replay()
    torch.cuda.synchronize()
    return host(z)


def streams():
    side = [torch.cuda.Stream() for _ in range(4)]
    parts = []
    for i, stream in enumerate(side):
        with torch.cuda.stream(stream):
            parts.append((data(512, 512, seed=i) @ data(512, 512, seed=i + 50)).sum(dim=1))
    for stream in side:
        torch.cuda.current_stream().wait_stream(stream)
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    event.synchronize()
    return host(torch.stack(parts))


def pinned():
    source = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
    on_device = source.to(dev, non_blocking=True) * 2
    back = torch.empty(1 << 20, dtype=torch.float32).pin_memory()
    back.copy_(on_device, non_blocking=True)
    # Pinned memory that is written by a copy and read by the next one, without the host in between.
    again = back.to(dev, non_blocking=True) + 1
    torch.cuda.synchronize()
    assert bool((back == source * 2).all())
    return host(again)


def oom():
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device=dev)
    except torch.OutOfMemoryError:
        return numpy.array([1])
    return numpy.array([0])


def device_assert_free_error():
    try:
        data(4)[torch.tensor([0, 1], device=dev)].view(3)
    except RuntimeError:
        return numpy.array([1])
    return numpy.array([0])


print(torch.cuda.get_device_name(0), torch.version.cuda)
for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
    results.run(f"matmul_{name}", lambda: host(data(512, 768, dtype=dtype) @ data(768, 384, dtype=dtype, seed=1)))
    results.run(f"linear_{name}",
                lambda: host(F.linear(data(64, 1024, dtype=dtype), data(4096, 1024, dtype=dtype, seed=1),
                                      data(4096, dtype=dtype, seed=2))))
results.run("conv2d", lambda: host(F.conv2d(data(8, 16, 56, 56), data(32, 16, 3, 3, seed=1), padding=1)))
results.run("conv2d_bf16_nhwc", lambda: host(F.conv2d(
    data(8, 64, 56, 56, dtype=torch.bfloat16).to(memory_format=torch.channels_last),
    data(64, 64, 3, 3, dtype=torch.bfloat16, seed=1).to(memory_format=torch.channels_last), padding=1)))
results.run("attention", lambda: host(F.scaled_dot_product_attention(
    data(2, 8, 256, 64, dtype=torch.float16), data(2, 8, 256, 64, dtype=torch.float16, seed=1),
    data(2, 8, 256, 64, dtype=torch.float16, seed=2), is_causal=True)))
results.run("attention_bf16", lambda: host(F.scaled_dot_product_attention(
    data(2, 8, 256, 64, dtype=torch.bfloat16), data(2, 8, 256, 64, dtype=torch.bfloat16, seed=1),
    data(2, 8, 256, 64, dtype=torch.bfloat16, seed=2), is_causal=True)))
results.run("fft",
            lambda: numpy.stack([host(torch.fft.fft2(data(64, 128)).real), host(torch.fft.fft2(data(64, 128)).imag)]))
results.run("rfft", lambda: host(torch.fft.irfft(torch.fft.rfft(data(32, 1000)))))
results.run("sort", lambda: host(torch.sort(data(100000))[0]))
results.run("topk", lambda: host(torch.topk(data(64, 10000), 20)[0]))
results.run("cumsum", lambda: host(torch.cumsum(data(1000, 1000), 1)))
results.run("unique", lambda: host(torch.unique((data(100000) * 100).int())))
results.run("solve",
            lambda: host(torch.linalg.solve(data(128, 128) + 12 * torch.eye(128, device=dev), data(128, 8, seed=1))))
results.run("svd", lambda: host(torch.linalg.svdvals(data(96, 64))))
results.run("cholesky",
            lambda: host(torch.linalg.cholesky(data(64, 64) @ data(64, 64).T + 64 * torch.eye(64, device=dev))))
results.run("sparse", lambda: host(torch.sparse.mm(
    (data(512, 512) * (data(512, 512, seed=3) > 1.5)).to_sparse_csr(), data(512, 64, seed=1))))
results.run("sparse_coo", lambda: host(torch.sparse.mm(
    (data(512, 512) * (data(512, 512, seed=3) > 1.5)).to_sparse(), data(512, 64, seed=1))))
results.run("embedding", lambda: host(F.embedding(torch.arange(1000, device=dev) % 77, data(100, 64))))
results.run("layer_norm", lambda: host(F.layer_norm(data(64, 1024), (1024,))))
results.run("softmax", lambda: host(F.softmax(data(64, 5000), -1)))
results.run("random", lambda: (torch.manual_seed(5), host(torch.randn(1000, device=dev)))[1])
results.run("dropout", lambda: (torch.manual_seed(5), host(F.dropout(data(100, 100))))[1])
results.run("graph", graph)
results.run("streams", streams)
results.run("pinned", pinned)
results.run("items", lambda: numpy.array([float(data(10, seed=i).sum().item()) for i in range(50)]))
results.run("oom", oom)
results.run("error", device_assert_free_error)
results.run("grad", lambda: (lambda w: (torch.tanh(data(64, 64) @ w).sum().backward(), host(w.grad))[1])(
    data(64, 64, seed=2).requires_grad_()))
results.run("large_copy", lambda: numpy.array([torch.arange(30_000_001, dtype=torch.int64).to(dev).cpu().sum().item()]))
results.run("memory_info", lambda: numpy.array([torch.cuda.mem_get_info()[1] > 0]))
results.write()
