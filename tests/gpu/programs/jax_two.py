"""JAX over two devices of one host."""

import jax
import jax.numpy as jnp
import numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from results import Results

results = Results()
devices = jax.devices()[:2]
mesh = Mesh(numpy.array(devices), ("x",))


def whole(*shape, seed=0):
    return numpy.random.default_rng(seed).integers(-4, 5, shape).astype(numpy.float32)


def split(x):
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec("x")))


def copied():
    x = jax.device_put(whole(1000, 100), devices[0])
    y = jax.device_put(x * 2, devices[1]) + 1
    return numpy.asarray(jax.device_put(y, devices[0]) + x)


def trained():
    """Data on both, weights on each; gradients are summed over both."""
    w = jax.device_put(whole(32, 8, seed=1) * 0.1, NamedSharding(mesh, PartitionSpec()))

    @jax.jit
    def step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
        return w - 0.0625 * gradient, loss

    losses = []
    for i in range(5):
        w, loss = step(w, split(whole(64, 32, seed=i)))
        losses.append(float(loss))
    return losses


def separate():
    """Work that goes on on both at once."""
    step = jax.jit(lambda x: (x @ x) % 7)
    x = [jax.device_put(whole(128, 128, seed=i), device) for i, device in enumerate(devices)]
    for _ in range(20):
        x = [step(part) for part in x]
    return numpy.stack([numpy.asarray(part) for part in x])


results.run("devices", lambda: [len(devices)])
results.run("copied", copied)
results.run("separate", separate)
results.run("split", lambda: numpy.asarray(jax.jit(lambda x: x * 2 + 1)(split(whole(64, 100)))))
results.run("product", lambda: numpy.asarray(jax.jit(lambda x: x @ x.T)(split(whole(64, 100)))))
results.run("sum", lambda: numpy.asarray(jax.jit(jnp.sum)(split(whole(64, 100)))))
results.run("trained", trained)
results.run("pmap", lambda: numpy.asarray(jax.pmap(lambda x: jax.lax.psum(x, "i") - x, axis_name="i",
                                                   devices=devices)(whole(2, 1000))))
results.write()
