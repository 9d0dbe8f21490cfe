"""Triton kernels of one's own, compiled here and run on the GPU host. Numbers are whole and small: exact in whatever
order autotuning leads to."""

import torch
import triton
import triton.language as tl
from results import Results
from tensors import data, error_of, host, small

results = Results()


@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < count) + tl.load(y + i, mask=i < count), mask=i < count)


def added():
    x, y = data(100003), data(100003, seed=1)
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(100003, 1024),)](x, y, out, 100003, BLOCK=1024)
    assert bool((out == x + y).all())
    return host(out)


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + i, mask=i < columns, other=-float("inf"))
    numerator = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + i, numerator / tl.sum(numerator, axis=0), mask=i < columns)


def softmax():
    x = data(200, 781)
    out = torch.empty_like(x)
    softmax_kernel[(200,)](x, out, 781, BLOCK=1024, num_warps=8)
    torch.testing.assert_close(out, torch.softmax(x, 1))
    return host(out)


@triton.autotune(configs=[triton.Config({"M": m, "N": n, "K": 32}, num_warps=w, num_stages=s)
                          for m, n, w, s in ((32, 32, 2, 2), (64, 64, 4, 3), (128, 64, 4, 4), (64, 128, 8, 3))],
                 key=["rows", "columns", "inner"])
@triton.jit
def product_kernel(a, b, c, rows, columns, inner, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, inner, K):
        k = first + tl.arange(0, K)
        left = tl.load(a + i[:, None] * inner + k[None, :], mask=(i[:, None] < rows) & (k[None, :] < inner), other=0.0)
        right = tl.load(b + k[:, None] * columns + j[None, :], mask=(k[:, None] < inner) & (j[None, :] < columns),
                        other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + i[:, None] * columns + j[None, :], total, mask=(i[:, None] < rows) & (j[None, :] < columns))


def product(dtype):
    a, b = small(300, 200, dtype=dtype), small(200, 260, dtype=dtype, seed=1)
    c = torch.empty(300, 260, device="cuda")
    product_kernel[lambda meta: (triton.cdiv(300, meta["M"]), triton.cdiv(260, meta["N"]))](a, b, c, 300, 260, 200)
    assert bool((c == a.float() @ b.float()).all())
    return host(c)


@triton.jit
def histogram_kernel(x, bins, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins + tl.load(x + i, mask=i < count, other=0), 1, mask=i < count)


def histogram():
    x = (small(100000) + 4).int()
    bins = torch.zeros(9, dtype=torch.int32, device="cuda")
    histogram_kernel[(triton.cdiv(100000, 512),)](x, bins, 100000, BLOCK=512)
    assert bool((bins == torch.bincount(x, minlength=9)).all())
    return host(bins)


@triton.jit
def extremes_kernel(x, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i, mask=i < count, other=0)
    tl.atomic_max(out, tl.max(values, axis=0))
    tl.atomic_min(out + 1, tl.min(values, axis=0))
    tl.atomic_xchg(out + 2, 7)
    tl.atomic_cas(out + 3, 0, 5)


def atomics():
    x, out = small(50000, dtype=torch.int32) * 1000, torch.zeros(4, dtype=torch.int32, device="cuda")
    extremes_kernel[(triton.cdiv(50000, 256),)](x, out, 50000, BLOCK=256)
    return host(out)


@triton.jit
def scan_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0) * BLOCK
    tl.store(out + row + i, tl.cumsum(tl.load(x + row + i), axis=0))


def scan():
    x = small(50, 512, dtype=torch.int32)
    out = torch.empty_like(x)
    scan_kernel[(50,)](x, out, BLOCK=512)
    assert bool((out == x.cumsum(1)).all())
    return host(out)


@triton.jit
def sort_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0) * BLOCK
    tl.store(out + row + i, tl.sort(tl.load(x + row + i)))


def sort():
    x = data(20, 256)
    out = torch.empty_like(x)
    sort_kernel[(20,)](x, out, BLOCK=256)
    assert bool((out == x.sort(1)[0]).all())
    return host(out)


@triton.jit
def norm_kernel(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + i, mask=i < columns, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(i < columns, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    y = centred * scale * tl.load(weight + i, mask=i < columns) + tl.load(bias + i, mask=i < columns)
    tl.store(out + row * columns + i, y, mask=i < columns)


def layer_norm():
    x, weight, bias = data(100, 500, dtype=torch.bfloat16), data(500, seed=1), data(500, seed=2)
    out = torch.empty(100, 500, device="cuda")
    norm_kernel[(100,)](x, weight, bias, out, 500, 1e-5, BLOCK=512)
    return host(out)


@triton.jit
def while_kernel(x, out, BLOCK: tl.constexpr):
    """Steps of the Collatz sequence."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i)
    steps = tl.zeros((BLOCK,), dtype=tl.int32)
    while tl.max(value, axis=0) > 1:
        following = tl.where(value % 2 == 0, value // 2, 3 * value + 1)
        steps += (value > 1).to(tl.int32)
        value = tl.where(value > 1, following, value)
    tl.store(out + i, steps)


def loop():
    x = torch.arange(1, 1025, device="cuda")
    out = torch.empty(1024, dtype=torch.int32, device="cuda")
    while_kernel[(8,)](x, out, BLOCK=128)
    return host(out)


@triton.jit
def descriptor_kernel(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[rows, columns], strides=[columns, 1], block_shape=[M, N])
    target = tl.make_tensor_descriptor(out, shape=[rows, columns], strides=[columns, 1], block_shape=[M, N])
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([i, j], source.load([i, j]) * 2)


def descriptors():
    """Tensor memory accelerator, with descriptors that the kernel makes in memory it asks for."""
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    x = small(256, 512)
    out = torch.empty_like(x)
    descriptor_kernel[(4, 8)](x, out, 256, 512, M=64, N=64)
    assert bool((out == x * 2).all())
    return host(out)


def host_descriptors():
    """Descriptors made on the host, as arguments."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    x = small(256, 512)
    out = torch.empty_like(x)
    host_descriptor_kernel[(4, 8)](TensorDescriptor.from_tensor(x, [64, 64]),
                                   TensorDescriptor.from_tensor(out, [64, 64]), M=64, N=64)
    assert bool((out == x * 3).all())
    return host(out)


@triton.jit
def host_descriptor_kernel(source, target, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([i, j], source.load([i, j]) * 3)


@triton.jit
def random_kernel(out, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.rand(seed, i))


def random():
    out = torch.empty(4096, device="cuda")
    random_kernel[(16,)](out, 42, BLOCK=256)
    return host(out)


@triton.jit
def reduce_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.reduce(tl.load(x + tl.program_id(0) * BLOCK + i), 0, larger))


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


def reduction():
    x = small(100, 256, dtype=torch.int32) * 17
    out = torch.empty(100, dtype=torch.int32, device="cuda")
    reduce_kernel[(100,)](x, out, BLOCK=256)
    assert bool((out == x.max(1)[0]).all())
    return host(out)


def in_a_graph():
    x, y = small(10000), small(10000, seed=1)
    out = torch.empty_like(x)
    add_kernel[(10,)](x, y, out, 10000, BLOCK=1024)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_kernel[(10,)](x, y, out, 10000, BLOCK=1024)
        add_kernel[(10,)](out, y, x, 10000, BLOCK=1024)
    for _ in range(3):
        graph.replay()
    return host(x)


def too_large():
    """A kernel that asks for more shared memory than there is."""
    a = torch.zeros(512, 512, device="cuda", dtype=torch.float16)
    c = torch.zeros(512, 512, device="cuda")
    error = error_of(lambda: product_kernel.fn[(1, 1)](a, a, c, 512, 512, 1024, M=128, N=128, K=256, num_stages=4,
                                                       num_warps=8))
    return [float(error == "OutOfResources"), float((c + 1).sum().item())]


for case in (added, softmax, histogram, atomics, scan, sort, layer_norm, loop, descriptors, host_descriptors, random,
             reduction, in_a_graph,
             too_large):
    results.run(case.__name__, case)
for dtype in (torch.float16, torch.bfloat16, torch.float32):
    results.run(f"product_{str(dtype).split('.')[1]}", lambda: product(dtype))
results.write()
