"""CuPy: kernels in source, streams, graphs, memory pools, and the libraries behind its functions."""

import threading

import cupy
import cupyx
import cupyx.scipy.fft
import cupyx.scipy.linalg
import cupyx.scipy.ndimage
import cupyx.scipy.signal
import cupyx.scipy.sparse
import cupyx.scipy.sparse.linalg
import cupyx.scipy.special
import numpy
from results import Results

results = Results()
host = cupy.asnumpy


def normal(*shape, seed=0, dtype=numpy.float32):
    return cupy.asarray(numpy.random.default_rng(seed).standard_normal(shape).astype(dtype))


def whole(*shape, seed=0, dtype=numpy.float32):
    return cupy.asarray(numpy.random.default_rng(seed).integers(-4, 5, shape).astype(dtype))


def definite(n):
    x = normal(n, n, dtype=numpy.float64)
    return x @ x.T + n * cupy.eye(n)


def thin(rows, columns, seed=0):
    """A sparse matrix."""
    return cupyx.scipy.sparse.csr_matrix(whole(rows, columns, seed=seed) * (whole(rows, columns, seed=seed + 50) > 2))


def templates():
    """A kernel template, by the names of its instances."""
    module = cupy.RawModule(code="""
        template <class T> __global__ void twice(T* x, int n) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) x[i] = x[i] * T(2);
        }""", options=("-std=c++17",), name_expressions=("twice<int>", "twice<double>"))
    integers, doubles = cupy.arange(1000, dtype=cupy.int32), cupy.arange(1000, dtype=cupy.float64)
    module.get_function("twice<int>")((8,), (128,), (integers, 1000))
    module.get_function("twice<double>")((8,), (128,), (doubles, 1000))
    return host(integers + doubles)


def shared_memory():
    kernel = cupy.RawKernel(r"""
        extern "C" __global__ void reversed(const float* x, float* y) {
          extern __shared__ float tile[];
          tile[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
          __syncthreads();
          y[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
        }""", "reversed")
    kernel.max_dynamic_shared_size_bytes = 100 << 10
    x, y = whole(4096), cupy.empty(4096, cupy.float32)
    kernel((4,), (1024,), (x, y), shared_mem=100 << 10)
    return host(y)


def structs():
    """An argument that is a struct."""
    kernel = cupy.RawKernel(r"""
        struct Line { double slope; float offset; int count; };
        extern "C" __global__ void line(Line l, double* y) {
          if (threadIdx.x < l.count) y[threadIdx.x] = l.slope * threadIdx.x + l.offset;
        }""", "line")
    line = numpy.array([(2.5, 1.0, 100)], dtype=numpy.dtype([("slope", "f8"), ("offset", "f4"), ("count", "i4")]))[0]
    y = cupy.zeros(128)
    kernel((1,), (128,), (line, y))
    return host(y)


def cooperative():
    kernel = cupy.RawKernel(r"""
        #include <cooperative_groups.h>
        extern "C" __global__ void phases(int* x, int n) {
          auto grid = cooperative_groups::this_grid();
          for (int phase = 0; phase < 5; ++phase) {
            int i = grid.thread_rank(), other = x[(i + 1) % n];
            grid.sync();
            if (i < n) x[i] += other;
            grid.sync();
          }
        }""", "phases", enable_cooperative_groups=True)
    x = cupy.arange(2048, dtype=cupy.int32)
    kernel((16,), (128,), (x, 2048))
    return host(x)


def textures():
    from cupy.cuda import runtime, texture

    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    array = texture.CUDAarray(channel, 64, 32)
    array.copy_from(whole(32, 64))
    where = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
    how = texture.TextureDescriptor((runtime.cudaAddressModeClamp, runtime.cudaAddressModeClamp),
                                    runtime.cudaFilterModeLinear, runtime.cudaReadModeElementType)
    kernel = cupy.RawKernel(r"""
        extern "C" __global__ void read(cudaTextureObject_t t, float* out) {
          int x = threadIdx.x, y = blockIdx.x;
          out[y * 64 + x] = tex2D<float>(t, x + 1.0f, y + 0.5f);
        }""", "read")
    out = cupy.empty((32, 64), cupy.float32)
    kernel((32,), (64,), (texture.TextureObject(where, how), out))
    return host(out)


def printed():
    """What kernels print comes out here."""
    kernel = cupy.RawKernel(r'extern "C" __global__ void say() { printf("block %d\n", blockIdx.x); }', "say")
    kernel((1,), (1,), ())
    cupy.cuda.runtime.deviceSynchronize()
    return [1]


def graph():
    stream = cupy.cuda.Stream(non_blocking=True)
    x = whole(1000)
    with stream:
        x *= 1
        stream.begin_capture()
        x *= 2
        x += 1
        captured = stream.end_capture()
        for _ in range(6):
            captured.launch(stream)
        stream.synchronize()
    return host(x)


def many_streams():
    streams, parts = [cupy.cuda.Stream(non_blocking=True) for _ in range(6)], []
    for i, stream in enumerate(streams):
        with stream:
            parts.append((whole(200, 200, seed=i) @ whole(200, 200, seed=i + 50)).sum(axis=0))
    main = cupy.cuda.Stream.null
    for stream in streams:
        main.wait_event(stream.record())
    return host(cupy.stack(parts))


def host_functions():
    """Functions of the program's own that a stream calls in its order."""
    seen, stream = [], cupy.cuda.Stream(non_blocking=True)
    with stream:
        for i in range(5):
            cupy.ones(1000) * i
            stream.launch_host_func(seen.append, i)
    stream.synchronize()
    return seen


def timed():
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    whole(500, 500) @ whole(500, 500)
    end.record()
    end.synchronize()
    return [cupy.cuda.get_elapsed_time(begin, end) > 0, end.done]


def memory_pool():
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.ones(1 << 20)
        used = pool.used_bytes()
        del x
        free = pool.free_bytes()
        pool.free_all_blocks()
    return [used, free, pool.total_bytes()]


def asynchronous_pool():
    pool = cupy.cuda.MemoryAsyncPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = [whole(1000 * (i + 1), seed=i) for i in range(20)]
        sums = [float(part.sum()) for part in x]
    return sums


def managed():
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        x = cupy.arange(10000, dtype=cupy.float64)
        x *= 3
        cupy.cuda.runtime.deviceSynchronize()
        return host(x)


def limited_pool():
    pool = cupy.cuda.MemoryPool()
    pool.set_limit(size=1 << 20)
    with cupy.cuda.using_allocator(pool.malloc):
        try:
            cupy.ones(1 << 20)
        except cupy.cuda.memory.OutOfMemoryError:
            return [1, float(cupy.ones(100).sum())]
    return [0]


def pinned():
    array = cupyx.empty_pinned((1000, 100), numpy.float32)
    array[:] = numpy.arange(100)
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.empty((1000, 100), numpy.float32)
    x.set(array, stream=stream)
    with stream:
        x *= 2
    back = cupyx.empty_pinned((1000, 100), numpy.float32)
    x.get(stream=stream, out=back)
    stream.synchronize()
    return back.copy()


def threads():
    out = [None] * 8

    def work(i):
        with cupy.cuda.Stream(non_blocking=True):
            x = whole(100, 100, seed=i)
            for _ in range(30):
                x = (x @ x) % 7
            out[i] = host(x)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return numpy.stack(out)


def jit_kernel():
    from cupyx import jit

    @jit.rawkernel()
    def halved(x, y, size):
        i = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
        if i < size:
            y[i] = x[i] / 2

    x, y = whole(1000), cupy.zeros(1000, cupy.float32)
    halved[8, 128](x, y, numpy.uint32(1000))
    return host(y)


def broken_source():
    """The compiler's complaint is an exception."""
    try:
        cupy.RawKernel('extern "C" __global__ void broken() { this is not C++; }', "broken").compile()
    except cupy.cuda.compiler.CompileException:
        return [1]
    return [0]


def fused():
    @cupy.fuse()
    def work(x, y):
        return cupy.sqrt(x * x + y * y) + cupy.maximum(x, y)

    return host(work(normal(1000), normal(1000, seed=1)))


cases = {
    "templates": templates, "shared_memory": shared_memory, "structs": structs, "cooperative": cooperative,
    "textures": textures,
    "printed": printed, "graph": graph, "many_streams": many_streams, "host_functions": host_functions, "timed": timed,
    "memory_pool": memory_pool, "asynchronous_pool": asynchronous_pool, "managed": managed,
    "limited_pool": limited_pool, "pinned": pinned,
    "threads": threads, "jit_kernel": jit_kernel, "broken_source": broken_source, "fused": fused,
    # cuSPARSE
    "sparse_matrix": lambda: host(thin(100, 80) @ whole(80, 10)),
    "sparse_vector": lambda: host(thin(100, 80) @ whole(80)),
    "sparse_product": lambda: host((thin(100, 80) @ thin(80, 60, seed=1)).toarray()),
    "sparse_transposed": lambda: host(thin(100, 80).T.tocsr().toarray()),
    "sparse_sum": lambda: host((thin(100, 80) + thin(100, 80, seed=1)).toarray()),
    "sparse_coo": lambda: host(thin(100, 80).tocoo().tocsc().toarray()),
    "conjugate_gradient": lambda: host(cupyx.scipy.sparse.linalg.cg(cupyx.scipy.sparse.csr_matrix(definite(60)),
                                                                    cupy.ones(60), maxiter=200)[0]),
    # cuSOLVER
    "cholesky": lambda: host(cupy.linalg.cholesky(definite(50))),
    "eigh": lambda: host(cupy.linalg.eigvalsh(definite(50))),
    "svd": lambda: host(cupy.linalg.svd(normal(50, 30, dtype=numpy.float64), compute_uv=False)),
    "qr": lambda: host(abs(cupy.linalg.qr(normal(50, 30, dtype=numpy.float64))[1])),
    "lu": lambda: host(cupyx.scipy.linalg.lu(definite(40))[2]),
    "inverse": lambda: host(cupy.linalg.inv(definite(40))),
    "least_squares": lambda: host(cupy.linalg.lstsq(normal(50, 5, dtype=numpy.float64),
                                                    normal(50, dtype=numpy.float64, seed=1), rcond=None)[0]),
    # cuBLAS
    "product_half": lambda: host(normal(64, 128, dtype=numpy.float16) @ normal(128, 32, seed=1, dtype=numpy.float16)),
    "product_double": lambda: host(normal(64, 128, dtype=numpy.float64) @ normal(128, 32, seed=1, dtype=numpy.float64)),
    "product_complex": lambda: host((normal(32, 32) + 1j * normal(32, 32, seed=1)) @ normal(32, 32, seed=2)),
    "product_batched": lambda: host(cupy.matmul(normal(10, 32, 16), normal(10, 16, 24, seed=1))),
    "product_int8": lambda: host(whole(64, 64, dtype=numpy.int8) @ whole(64, 64, seed=1, dtype=numpy.int8)),
    "einsum": lambda: host(cupy.einsum("bij,bkj->bik", normal(4, 16, 8), normal(4, 12, 8, seed=1))),
    "tensordot": lambda: host(cupy.tensordot(normal(8, 9, 10), normal(10, 9, 7, seed=1), axes=([1, 2], [1, 0]))),
    # cuFFT
    "fft_batched": lambda: host(cupy.fft.fft(normal(100, 256))),
    "fft_prime": lambda: host(cupy.fft.fft(normal(5, 1009))),
    "fft_3d": lambda: host(cupy.fft.fftn(normal(16, 20, 24))),
    "fft_inverse_real": lambda: host(cupy.fft.irfft(cupy.fft.rfft(normal(20, 300)))),
    "dct": lambda: host(cupyx.scipy.fft.dct(normal(20, 64))),
    "convolved": lambda: host(cupyx.scipy.signal.fftconvolve(normal(500), normal(50, seed=1))),
    # cuRAND
    "random_generators": lambda: numpy.concatenate([host(cupy.random.Generator(bits(5)).random(200)) for bits in (
        cupy.random.XORWOW, cupy.random.MRG32k3a, cupy.random.Philox4x3210)]),
    "random_legacy": lambda: (lambda state: numpy.concatenate([host(state.normal(size=200)),
                                                               host(state.uniform(size=200)),
                                                               host(state.poisson(3, size=200))]))(
                                                                   cupy.random.RandomState(5)),
    "random_permutation": lambda: (cupy.random.seed(3), host(cupy.random.permutation(1000)))[1],
    # Thrust and CUB
    "sort_rows": lambda: host(cupy.sort(normal(50, 200), axis=1)),
    "arg_sort": lambda: host(cupy.argsort(normal(10000))),
    "lexical_sort": lambda: host(cupy.lexsort(cupy.stack([whole(1000), whole(1000, seed=1)]))),
    "unique": lambda: host(cupy.unique(whole(1000), return_counts=True)[1]),
    "partitioned": lambda: host(cupy.sort(cupy.partition(normal(1000), 10)[:10])),
    "cumulative": lambda: host(cupy.cumsum(whole(100000))),
    "reduced": lambda: host(cupy.stack([whole(100, 1000).sum(axis=1), whole(100, 1000).max(axis=1),
                                        whole(100, 1000).argmin(axis=1)])),
    # kernels of CuPy's own
    "histogram": lambda: host(cupy.histogram(normal(10000), 50, (-3, 3))[0]),
    "scattered": lambda: (lambda x: (cupy.add.at(x, cupy.arange(1000) % 50, whole(1000)),
                                     host(x))[1])(cupy.zeros(50, cupy.float32)),
    "selected": lambda: host(whole(1000)[whole(1000, seed=1) > 0]),
    "filtered": lambda: host(cupyx.scipy.ndimage.gaussian_filter(normal(64, 64), 2)),
    "labelled": lambda: host(cupyx.scipy.ndimage.label(whole(64, 64) > 2)[0]),
    "rotated": lambda: host(cupyx.scipy.ndimage.rotate(normal(40, 40), 30, order=1)),
    "special_functions": lambda: host(cupyx.scipy.special.gammaln(abs(normal(1000)) + 1) +
                                      cupyx.scipy.special.erf(normal(1000))),
    "bits": lambda: host(cupy.packbits(whole(1000) > 0)),
    "complex_numbers": lambda: host(cupy.exp(1j * normal(1000)) * cupy.angle(normal(1000) + 1j)),
}
for name, case in cases.items():
    results.run(name, case)
results.write()
