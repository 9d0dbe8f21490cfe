"""JAX over devices of two hosts; locally the one device stands for both."""

import jax
import jax.numpy as jnp
import numpy
from results import Results

results = Results()
devices = jax.devices()
first, second = devices[0], devices[min(1, len(devices) - 1)]


def moved():
    x = jax.device_put(numpy.arange(1 << 20, dtype=numpy.float32), first)
    y = jax.device_put(x, second) * 2
    return numpy.asarray(jax.device_put(y, first) + x)


def computed_on_second():
    x = jax.device_put(numpy.arange(1 << 16, dtype=numpy.float32).reshape(256, 256) / 1000, second)
    return numpy.asarray(jax.jit(lambda a: jnp.tanh(a @ a.T).sum(axis=0))(x))


def summed_over_all():
    """A collective, which NCCL makes where there are several devices."""
    count = len(devices)
    total = jax.pmap(lambda a: jax.lax.psum(a, "all"), axis_name="all")(numpy.ones((count, 4), numpy.float32))
    return numpy.asarray(total[0] / count)


for case in (moved, computed_on_second, summed_over_all):
    results.run(case.__name__, case)
results.write()
