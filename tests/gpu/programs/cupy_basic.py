"""CuPy: arrays, FFT, kernels of one's own."""

import cupy
import numpy
from results import Results

results = Results()
print(cupy.cuda.runtime.getDeviceProperties(0)["name"])
host = numpy.random.default_rng(0).standard_normal((256, 128), dtype=numpy.float32)
x = cupy.asarray(host)

results.run("elementwise", lambda: cupy.asnumpy(cupy.sin(x) * 2 + x ** 2))
results.run("sum", lambda: cupy.asnumpy(x.sum(axis=0)))
results.run("matmul", lambda: cupy.asnumpy(x.T @ x))
results.run("fft", lambda: cupy.asnumpy(cupy.abs(cupy.fft.fft(x))))
results.run("rfft2", lambda: cupy.asnumpy(cupy.abs(cupy.fft.rfft2(x))))
results.run("sort", lambda: cupy.asnumpy(cupy.sort(x.ravel())))
results.run("solve",
            lambda: cupy.asnumpy(cupy.linalg.solve(x[:128] + 20 * cupy.eye(128, dtype=cupy.float32), x[128:256, :16])))
results.run("random", lambda: cupy.asnumpy(cupy.random.default_rng(3).random(1000)))

raw = cupy.RawKernel(r"""
extern "C" __global__ void saxpy(const float* x, float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
""", "saxpy")


def saxpy():
    y = cupy.ones(x.size, dtype=cupy.float32)
    raw((x.size // 128 + 1,), (128,), (x, y, cupy.float32(3), cupy.int32(x.size)))
    return cupy.asnumpy(y)


results.run("raw_kernel", saxpy)
module = cupy.RawModule(code=r"""
__constant__ float table[4];
extern "C" __global__ void look_up(float* out) { out[threadIdx.x] = table[threadIdx.x % 4]; }
""")


def constant():
    pointer = module.get_global("table")
    cupy.ndarray(4, cupy.float32, pointer)[:] = cupy.asarray([1, 2, 3, 4], dtype=cupy.float32)
    out = cupy.zeros(32, dtype=cupy.float32)
    module.get_function("look_up")((1,), (32,), (out,))
    return cupy.asnumpy(out)


results.run("raw_module_constant", constant)
results.run("elementwise_kernel",
            lambda: cupy.asnumpy(cupy.ElementwiseKernel("float32 a", "float32 b", "b = a * a + 1", "square")(x)))
results.run("reduction_kernel",
            lambda: cupy.asnumpy(cupy.ReductionKernel("float32 a", "float32 b", "a * a", "a + b", "b = sqrt(a)", "0",
                                                      "norm")(x)))


def streams():
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        y = (x * 2).sum()
    stream.synchronize()
    return cupy.asnumpy(y)


results.run("streams", streams)


def pinned():
    memory = cupy.cuda.alloc_pinned_memory(x.nbytes)
    target = numpy.frombuffer(memory, numpy.float32, x.size).reshape(x.shape)
    stream = cupy.cuda.Stream()
    x.get(stream=stream, out=target)
    stream.synchronize()
    return target.copy()


results.run("pinned", pinned)
results.write()
