"""JAX: transformations, buffers that are given away, types of all kinds, libraries, Pallas kernels, threads."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy
from jax import lax
from results import Results

results = Results()
jax.config.update("jax_enable_x64", True)


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(numpy.random.default_rng(seed).standard_normal(shape), dtype=dtype)


def whole(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(numpy.random.default_rng(seed).integers(-4, 5, shape), dtype=dtype)


def host(x):
    return numpy.asarray(x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float8_e4m3fn) else x)


def donated():
    """A buffer that a program gives away holds the result; it cannot be used again."""
    step = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    x = whole(1000, 1000)
    for _ in range(10):
        x = step(x)
    old = x
    x = step(x)
    return [float(x.sum()), float(old.is_deleted())]


def scanned():
    """A recurrent network by scan, and its gradient."""
    w = normal(32, 32) * 0.1

    def loss(w):
        state, out = lax.scan(lambda state, x: ((following := jnp.tanh(state @ w + x)), following.sum()),
                              jnp.zeros((8, 32)), normal(40, 8, 32, seed=1))
        return out.sum() + state.sum()

    return host(jax.jit(jax.grad(loss))(w))


def mapped():
    """One function for each device: here, for one."""
    return host(jax.pmap(lambda x: lax.psum(x * 2, "i"), axis_name="i", devices=jax.local_devices()[:1])(whole(1, 100)))


def sharded():
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(numpy.array(jax.devices()[:1]), ("x",))
    x = jax.device_put(whole(64, 64), NamedSharding(mesh, PartitionSpec("x", None)))
    return host(jax.jit(lambda a: a @ a.T)(x))


def trained():
    """A small network with Adam, written out."""
    def network(parameters, x):
        return jnp.tanh(x @ parameters["a"]) @ parameters["b"]

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters, moments, x, y):
        loss, gradients = jax.value_and_grad(lambda p: ((network(p, x) - y) ** 2).mean())(parameters)
        moments = jax.tree.map(lambda m, g: (0.9 * m[0] + 0.1 * g, 0.99 * m[1] + 0.01 * g * g), moments, gradients,
                               is_leaf=lambda node: isinstance(node, tuple))
        parameters = jax.tree.map(lambda p, m: p - 0.01 * m[0] / (jnp.sqrt(m[1]) + 1e-8), parameters, moments)
        return parameters, moments, loss

    parameters = {"a": normal(16, 64) * 0.1, "b": normal(64, 4, seed=1) * 0.1}
    moments = jax.tree.map(lambda p: (jnp.zeros_like(p), jnp.zeros_like(p)), parameters)
    losses = []
    for i in range(20):
        parameters, moments, loss = step(parameters, moments, normal(32, 16, seed=i), normal(32, 4, seed=100 + i))
        losses.append(float(loss))
    return losses


def pallas():
    """A kernel written in Pallas, which Triton or Mosaic compiles."""
    from jax.experimental import pallas as pl

    def kernel(x, y, out):
        out[...] = x[...] * 2 + y[...]

    x, y = whole(1024), whole(1024, seed=1)
    add = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((1024,), jnp.float32), grid=(8,),
                         in_specs=[pl.BlockSpec((128,), lambda i: (i,))] * 2,
                         out_specs=pl.BlockSpec((128,), lambda i: (i,)))
    return host(jax.jit(add)(x, y))


def in_threads():
    step = jax.jit(lambda x: (x @ x) % 7)

    def work(seed):
        x = whole(64, 64, seed=seed)
        for _ in range(20):
            x = step(x)
        return host(x)

    with ThreadPoolExecutor(6) as pool:
        return numpy.stack(list(pool.map(work, range(12))))


def callbacks():
    """Functions of the program's own that run in the middle of what is compiled, in order."""
    seen = []

    @jax.jit
    def work(x):
        def body(i, x):
            jax.debug.callback(lambda i: seen.append(int(i)), i, ordered=True)
            return x + 1
        return lax.fori_loop(0, 5, body, x)

    total = float(work(whole(100)).sum())
    jax.effects_barrier()
    return [total, *seen]


def branches():
    choose = jax.jit(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x))
    return numpy.stack([host(choose(i, normal(100))) for i in range(3)])


def overlapped():
    """Many results asked for before any is read."""
    step = jax.jit(lambda x, i: jnp.cumsum(x * i) % 1009)
    return numpy.stack([host(x) for x in [step(whole(1000), i) for i in range(50)]])


def to_torch():
    """Memory handed to PyTorch, which shares it."""
    import torch

    x = whole(100, 100)
    x.block_until_ready()
    y = torch.from_dlpack(x) * 3
    torch.cuda.synchronize()
    return y.cpu().numpy()


def attention_gradient(implementation, dtype):
    def loss(q, k, v):
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
        return out.astype(jnp.float32).sum()

    inputs = [normal(2, 64, 4, 32, seed=i, dtype=dtype) for i in range(3)]
    return numpy.stack([host(g) for g in jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*inputs)])


def offloaded():
    """Values that wait in pinned memory of the host, and come back."""
    from jax.sharding import SingleDeviceSharding

    on_host, on_device = (SingleDeviceSharding(jax.devices()[0], memory_kind=kind)
                          for kind in ("pinned_host", "device"))
    x = jax.device_put(normal(100, 1000), on_host)
    step = jax.jit(lambda x: jax.device_put(jnp.sin(jax.device_put(x, on_device)), on_host), out_shardings=on_host)
    for _ in range(3):
        x = step(x)
    return host(jax.device_put(x, on_device))


def compiled_ahead():
    lowered = jax.jit(lambda x: jnp.fft.rfft(x).real).lower(jax.ShapeDtypeStruct((8, 128), jnp.float32))
    return host(lowered.compile()(whole(8, 128)))


def out_of_memory():
    try:
        jnp.zeros((1 << 45,), jnp.float32).block_until_ready()
    except Exception as error:  # noqa: BLE001 - any of JAX's
        return [float("RESOURCE_EXHAUSTED" in str(error)), float(whole(100).sum())]
    return []


def definite(n):
    x = normal(n, n, dtype=jnp.float64)
    return x @ x.T + n * jnp.eye(n)


cases = {
    "scanned": scanned, "donated": donated, "mapped": mapped, "sharded": sharded, "trained": trained, "pallas": pallas,
    "in_threads": in_threads, "callbacks": callbacks, "branches": branches, "overlapped": overlapped,
    "compiled_ahead": compiled_ahead,
    "to_torch": to_torch,
    "vmap_of_grad": lambda: host(jax.vmap(jax.grad(lambda x: jnp.prod(jnp.cos(x))))(normal(20, 8))),
    "hessian": lambda: host(jax.hessian(lambda x: (x ** 3).sum() + x.prod())(normal(6, dtype=jnp.float64))),
    "linearized": lambda: host(jax.jvp(jnp.tanh, (normal(50),), (normal(50, seed=1),))[1]),
    "product_half": lambda: host(normal(64, 128, dtype=jnp.float16) @ normal(128, 32, seed=1, dtype=jnp.float16)),
    "product_bf16": lambda: host(normal(64, 128, dtype=jnp.bfloat16) @ normal(128, 32, seed=1, dtype=jnp.bfloat16)),
    "product_double": lambda: host(normal(64, 128, dtype=jnp.float64) @ normal(128, 32, seed=1, dtype=jnp.float64)),
    "product_int8": lambda: host(lax.dot(whole(64, 64, dtype=jnp.int8), whole(64, 64, seed=1, dtype=jnp.int8),
                                         preferred_element_type=jnp.int32)),
    "product_fp8": lambda: host(lax.dot(whole(64, 64).astype(jnp.float8_e4m3fn),
                                        whole(64, 64, seed=1).astype(jnp.float8_e4m3fn),
                                        preferred_element_type=jnp.float32)),
    "product_complex": lambda: host(jnp.abs((normal(32, 32) + 1j * normal(32, 32, seed=1)) @ normal(32, 32, seed=2))),
    "einsum": lambda: host(jnp.einsum("bij,bkj->bik", normal(4, 16, 8), normal(4, 12, 8, seed=1))),
    "attention": lambda: host(jax.nn.dot_product_attention(*(normal(2, 64, 4, 32, seed=i, dtype=jnp.bfloat16)
                                                             for i in range(3)), is_causal=True)),
    "attention_gradient": lambda: attention_gradient("xla", jnp.float32),
    "attention_gradient_cudnn": lambda: attention_gradient("cudnn", jnp.bfloat16),
    "offloaded": offloaded,
    "convolution_transposed": lambda: host(lax.conv_transpose(normal(2, 8, 8, 4), normal(3, 3, 4, 6, seed=1), (2, 2),
                                                              "SAME")),
    "convolution_gradient": lambda: host(jax.grad(lambda w: lax.conv(normal(2, 4, 16, 16), w, (1, 1), "SAME").sum())(
        normal(8, 4, 3, 3, seed=1))),
    "pooled": lambda: host(lax.reduce_window(normal(2, 16, 16), -jnp.inf, lax.max, (1, 3, 3), (1, 2, 2), "VALID")),
    "fft2": lambda: host(jnp.abs(jnp.fft.fft2(normal(64, 48)))),
    "irfft": lambda: host(jnp.fft.irfft(jnp.fft.rfft(normal(16, 200)))),
    "fft_double": lambda: host(jnp.fft.fft(normal(100, dtype=jnp.float64)).real),
    "eigh": lambda: host(jnp.linalg.eigvalsh(definite(40))),
    "svd": lambda: host(jnp.linalg.svd(normal(40, 30, dtype=jnp.float64), compute_uv=False)),
    "qr": lambda: host(jnp.abs(jnp.linalg.qr(normal(40, 30, dtype=jnp.float64))[1])),
    "lu": lambda: host(jax.scipy.linalg.lu(definite(30))[2]),
    "inverse": lambda: host(jnp.linalg.inv(definite(30))),
    "cholesky_batched": lambda: host(jnp.linalg.cholesky(
        jnp.stack([definite(16) + i * jnp.eye(16) for i in range(10)]))),
    "triangular_solve": lambda: host(jax.scipy.linalg.solve_triangular(jnp.tril(definite(32)),
                                                                       normal(32, 4, dtype=jnp.float64), lower=True)),
    "sort_by_key": lambda: host(lax.sort((whole(1000), jnp.arange(1000.0, dtype=jnp.float32)), num_keys=1)[1]),
    "top_k": lambda: host(lax.top_k(normal(50, 1000), 10)[0]),
    "segments": lambda: host(jax.ops.segment_sum(whole(1000), jnp.arange(1000) % 17, 17)),
    "scatter": lambda: host(jnp.zeros(100).at[jnp.arange(1000) % 100].add(whole(1000).astype(jnp.float64))),
    "gather": lambda: host(normal(100, 20)[jnp.arange(0, 100, 7)]),
    "scan_associative": lambda: host(lax.associative_scan(jnp.add, whole(1000))),
    "histogram": lambda: host(jnp.histogram(normal(10000), 50, (-3, 3))[0]),
    "random_normal": lambda: host(jax.random.normal(jax.random.key(1), (1000,))),
    "random_others": lambda: numpy.concatenate([host(draw(jax.random.key(2), shape=(200,))) for draw in (
        jax.random.exponential, jax.random.gumbel, partial(jax.random.gamma, a=2.0),
        partial(jax.random.poisson, lam=3.0))]),
    "random_permutation": lambda: host(jax.random.permutation(jax.random.key(3), 1000)),
    "random_rbg": lambda: host(jax.random.uniform(jax.random.key(4, impl="rbg"), (1000,))),
    "special_functions": lambda: host(jax.scipy.special.gammaln(jnp.abs(normal(1000)) + 1) +
                                      jax.scipy.special.erfinv(jnp.tanh(normal(1000)))),
    "integers": lambda: host((whole(1000, dtype=jnp.int64) << 3) ^ whole(1000, seed=1, dtype=jnp.int64)),
    "interpolated": lambda: host(jnp.interp(jnp.linspace(0, 1, 100), jnp.linspace(0, 1, 11), normal(11))),
    "resized": lambda: host(jax.image.resize(normal(16, 16, 3), (24, 40, 3), "bicubic")),
    "large_transfer": lambda: [float(jnp.asarray(numpy.arange(20_000_001, dtype=numpy.float64)).sum())],
    "out_of_memory": out_of_memory,
}
print(jax.devices())
for name, case in cases.items():
    results.run(name, case)
results.write()
