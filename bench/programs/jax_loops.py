"""JAX as programs use it: W13. Usage: jax_loops.py NAME...; then as steps.py says."""

import itertools
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several of these share a device
# each has the same kernels, however fast others were when it chose
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

import steps  # noqa: E402
from steps import Workload  # noqa: E402

CALLS = 100
ARRAY = (64, 3, 224, 224)  # of four bytes: 38.5 MB
pending = []  # what the last step gave to the device


def finish():
    jax.block_until_ready(pending)
    pending.clear()


def jit():
    """A small computation, whose end is waited for each time."""
    compute = jax.jit(lambda x: jnp.tanh(x @ x))
    x = jnp.linspace(-1, 1, 256 * 256).reshape(256, 256)

    def step():
        for _ in range(CALLS):
            y = compute(x)
            y.block_until_ready()
        return numpy.asarray(y)[0, 0]

    return Workload(step, calls=CALLS)


def training_loop():
    """Training steps of which none is waited for; the last loss of a hundred is read."""
    keys = jax.random.split(jax.random.PRNGKey(1), 4)
    weights = [0.03 * jax.random.normal(key, (1024, 1024)) for key in keys[:3]]
    inputs = jax.random.normal(keys[3], (256, 1024))

    def loss_of(weights):
        x = inputs
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - 0.5) ** 2)

    @jax.jit
    def train(weights):
        loss, gradients = jax.value_and_grad(loss_of)(weights)
        return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)], loss

    state = [weights]

    def step():
        for _ in range(CALLS):
            state[0], loss = train(state[0])
        pending[:] = [state[0]]
        return loss.item()

    return Workload(step, calls=CALLS)


def device_put():
    host = numpy.random.default_rng(1).standard_normal(ARRAY, dtype=numpy.float32)
    if not numpy.array_equal(numpy.asarray(jax.device_put(host)), host):
        raise RuntimeError("what device_put brought to the device is not what the host has")
    made = itertools.count()

    def step():
        host[0, 0, 0, 0] = next(made)
        pending[:] = [jax.device_put(host)]
        pending[0].block_until_ready()
        return host[0, 0, 0, 0]

    return Workload(step, up=host.nbytes)


def device_get():
    """Of an array that is new each time, for JAX keeps what it has fetched."""
    made = itertools.count()
    compute = jax.jit(lambda x, i: x + i)
    x = jax.random.normal(jax.random.PRNGKey(1), ARRAY)

    def step():
        y = compute(x, float(next(made)))
        host = jax.device_get(y)
        return host[0, 0, 0, 0] + host[-1, -1, -1, -1]

    return Workload(step, down=x.nbytes)


if __name__ == "__main__":
    steps.main({"W13.jit": jit, "W13.training loop": training_loop, "W13.device_put": device_put,
                "W13.device_get": device_get}, finish)
