"""JAX: jit, grad, random numbers, loops, linear algebra."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
import jax
import jax.numpy as jnp
import numpy
from results import Results

results = Results()
print(jax.devices())
key = jax.random.PRNGKey(0)
x = jax.random.normal(key, (256, 128))
w = jax.random.normal(jax.random.PRNGKey(1), (128, 64))


@jax.jit
def model(x, w):
    return jnp.tanh(x @ w).sum()


results.run("jit", lambda: numpy.array(model(x, w)))
results.run("grad", lambda: numpy.array(jax.jit(jax.grad(model, argnums=1))(x, w)))
results.run("vmap", lambda: numpy.array(jax.vmap(lambda a: jnp.sort(a))(x)))
results.run("scan", lambda: numpy.array(jax.lax.scan(lambda c, a: (c * 0.9 + a, c), jnp.zeros(128), x)[1]))
results.run("while",
            lambda: numpy.array(jax.jit(lambda n: jax.lax.while_loop(
                lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 1.01), (0, 1.0)))(100)[1]))
results.run("conv", lambda: numpy.array(jax.jit(lambda a, b: jax.lax.conv(a, b, (1, 1), "SAME"))(
    jax.random.normal(key, (4, 8, 32, 32)), jax.random.normal(key, (16, 8, 3, 3)))))
results.run("fft", lambda: numpy.array(jnp.abs(jnp.fft.fft(x))))
results.run("solve", lambda: numpy.array(jnp.linalg.solve(x[:128] + 20 * jnp.eye(128), w)))
results.run("cholesky", lambda: numpy.array(jnp.linalg.cholesky(w.T @ w + jnp.eye(64))))
results.run("random", lambda: numpy.array(jax.random.uniform(key, (1000,))))
results.run("bf16", lambda: numpy.array((x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)))


def trained():
    @jax.jit
    def step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: ((jnp.tanh(x @ w) - 0.1) ** 2).mean())(w)
        return w - 0.5 * gradient, loss

    weights, losses = w, []
    for _ in range(20):
        weights, loss = step(weights, x)
        losses.append(float(loss))
    return losses


results.run("trained", trained)
results.run("callback", lambda: numpy.array(jax.jit(lambda a: jax.pure_callback(
    lambda b: numpy.asarray(b) * 2, jax.ShapeDtypeStruct((128, 64), jnp.float32), a))(w)))
results.write()
