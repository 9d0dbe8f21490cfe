"""NVRTC and the driver API from Python, by NVIDIA's bindings: programs, options, names, linking, constants, graphs."""

import ctypes

import numpy
from cuda.bindings import driver, nvrtc
from results import Results

results = Results()


def ok(answer):
    """The values of a call that went well."""
    if int(answer[0]) != 0:
        raise RuntimeError(str(answer[0]))
    values = answer[1:]
    return values[0] if len(values) == 1 else values


ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
context = ok(driver.cuDevicePrimaryCtxRetain(device))
ok(driver.cuCtxSetCurrent(context))


def compiled(source, *options, kind="CUBIN", name_expressions=()):
    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"source.cu", 0, [], []))
    for name in name_expressions:
        ok(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    choices = [b"--gpu-architecture=" + (b"sm_90" if kind == "CUBIN" else b"compute_90"),
               *(option.encode() for option in options)]
    error, = nvrtc.nvrtcCompileProgram(program, len(choices), choices)
    if int(error) != 0:
        log = b" " * ok(nvrtc.nvrtcGetProgramLogSize(program))
        ok(nvrtc.nvrtcGetProgramLog(program, log))
        raise ValueError(log.decode().split("\n")[0])
    image = b" " * ok(getattr(nvrtc, f"nvrtcGet{kind}Size")(program))
    ok(getattr(nvrtc, f"nvrtcGet{kind}")(program, image))
    names = [ok(nvrtc.nvrtcGetLoweredName(program, name.encode())) for name in name_expressions]
    return (image, names) if names else image


def launch(function, grid, block, *arguments, shared=0, stream=0):
    """Arguments are ctypes values."""
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
    ok(driver.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, ctypes.addressof(pointers), 0))


class Memory:
    def __init__(self, values):
        self.values = numpy.ascontiguousarray(values)
        self.address = ok(driver.cuMemAlloc(self.values.nbytes))
        ok(driver.cuMemcpyHtoD(self.address, self.values.ctypes.data, self.values.nbytes))

    def argument(self):
        return ctypes.c_void_p(int(self.address))

    def get(self):
        out = numpy.empty_like(self.values)
        ok(driver.cuMemcpyDtoH(out.ctypes.data, self.address, out.nbytes))
        return out


ADD = """extern "C" __global__ void add(float* x, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += by;
}"""


def add(kind, *options):
    module = ok(driver.cuModuleLoadData(compiled(ADD, *options, kind=kind)))
    x = Memory(numpy.arange(1000, dtype=numpy.float32))
    launch(ok(driver.cuModuleGetFunction(module, b"add")), 8, 128, x.argument(), ctypes.c_float(2.5),
           ctypes.c_int(1000))
    return x.get()


def templates():
    image, names = compiled("template <int by, class T> __global__ void scale(T* x) { x[threadIdx.x] *= by; }",
                            name_expressions=("scale<3, int>", "scale<5, double>"))
    module = ok(driver.cuModuleLoadData(image))
    integers, doubles = Memory(numpy.arange(64, dtype=numpy.int32)), Memory(numpy.arange(64, dtype=numpy.float64))
    for name, memory in zip(names, (integers, doubles)):
        launch(ok(driver.cuModuleGetFunction(module, name)), 1, 64, memory.argument())
    return integers.get() + doubles.get()


def constants():
    module = ok(driver.cuModuleLoadData(compiled(
        '__constant__ int table[8]; extern "C" __global__ void read(int* out) { out[threadIdx.x] = table[threadIdx.x % '
        '8] * 2; }')))
    address, size = ok(driver.cuModuleGetGlobal(module, b"table"))
    values = numpy.arange(8, dtype=numpy.int32) ** 2
    ok(driver.cuMemcpyHtoD(address, values.ctypes.data, size))
    out = Memory(numpy.zeros(32, numpy.int32))
    launch(ok(driver.cuModuleGetFunction(module, b"read")), 1, 32, out.argument())
    return out.get()


def linked():
    """Two programs that the driver's linker joins."""
    function = compiled('extern "C" __device__ int twice(int x) { return 2 * x; }', "--relocatable-device-code=true",
                        kind="PTX")
    caller = compiled('extern "C" __device__ int twice(int); extern "C" __global__ void call(int* x) { x[threadIdx.x] '
                      '= twice(x[threadIdx.x]); }',
                      "--relocatable-device-code=true", kind="PTX")
    link = ok(driver.cuLinkCreate(0, [], []))
    for i, image in enumerate((function, caller)):
        ok(driver.cuLinkAddData(link, driver.CUjitInputType.CU_JIT_INPUT_PTX, image, len(image), f"part{i}".encode(), 0,
                                [], []))
    image, size = ok(driver.cuLinkComplete(link))
    module = ok(driver.cuModuleLoadData(image))
    x = Memory(numpy.arange(64, dtype=numpy.int32))
    launch(ok(driver.cuModuleGetFunction(module, b"call")), 1, 64, x.argument())
    ok(driver.cuLinkDestroy(link))
    return x.get()


def library():
    """The newer way: libraries and kernels without a context."""
    image = compiled(ADD)
    loaded = ok(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0))
    kernel = ok(driver.cuLibraryGetKernel(loaded, b"add"))
    x = Memory(numpy.zeros(100, numpy.float32))
    launch(ok(driver.cuKernelGetFunction(kernel)), 1, 128, x.argument(), ctypes.c_float(4), ctypes.c_int(100))
    values = x.get()
    ok(driver.cuLibraryUnload(loaded))
    return values


def complaint():
    try:
        compiled('extern "C" __global__ void broken() { nothing_known(); }')
    except ValueError as error:
        return [ord(letter) for letter in str(error)]
    return []


def broken_image():
    return [int(driver.cuModuleLoadData(b"this is no image\0")[0]),
            int(driver.cuModuleLoadData(b".version 8.0\n.target sm_90\nnonsense\n\0")[0])]


def attributes():
    module = ok(driver.cuModuleLoadData(compiled("""
        extern "C" __global__ __launch_bounds__(256) void attributed(int* x) {
          __shared__ int tile[300];
          tile[threadIdx.x] = x[threadIdx.x];
          __syncthreads();
          x[threadIdx.x] = tile[255 - threadIdx.x];
        }""")))
    function = ok(driver.cuModuleGetFunction(module, b"attributed"))
    kinds = driver.CUfunction_attribute
    return [ok(driver.cuFuncGetAttribute(kind, function)) for kind in (
        kinds.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        kinds.CU_FUNC_ATTRIBUTE_NUM_REGS,
        kinds.CU_FUNC_ATTRIBUTE_BINARY_VERSION)] + [
            ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 256, 0))]


def on_streams():
    function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(compiled(ADD))), b"add"))
    streams = [ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(4)]
    x = [Memory(numpy.zeros(1000, numpy.float32)) for _ in streams]
    for turn in range(20):
        for stream, memory in zip(streams, x):
            launch(function, 8, 128, memory.argument(), ctypes.c_float(turn), ctypes.c_int(1000), stream=stream)
    for stream in streams:
        ok(driver.cuStreamSynchronize(stream))
    return numpy.stack([memory.get() for memory in x])


for name, case in {
    "cubin": lambda: add("CUBIN"), "ptx": lambda: add("PTX"),
    "fast_math": lambda: add("CUBIN", "--use_fast_math", "-default-device"),
    "line_info": lambda: add("CUBIN", "-lineinfo"), "debug": lambda: add("CUBIN", "-G"), "templates": templates,
    "constants": constants,
    "linked": linked, "library": library, "complaint": complaint, "broken_image": broken_image,
    "attributes": attributes,
    "on_streams": on_streams,
}.items():
    results.run(name, case)
results.write()
