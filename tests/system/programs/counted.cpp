// A CUDA program whose calls a test counts the instructions of: `counted N` makes N calls of a kind and then 2N, for
// each kind, so that the difference is what N calls cost. `counted N cuLaunchKernel` makes calls of that kind only, to
// show where they go: valgrind --tool=callgrind, then callgrind_annotate.
//
// Time stands still meanwhile for the thread that makes them, for what is sent by time would be sent more often the
// slower the machine is. What else costs a call, and is no instruction, is counted here: how often it read the clock
// and how often it asked for memory.

#include <cuda.h>
#include <dlfcn.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

namespace {

constinit thread_local bool counting = false;
constinit thread_local timespec still{};
std::uint64_t clock_reads = 0, allocations = 0;

}  // namespace

// In place of the C library's, for the client library too: its own are asked for by name.
extern "C" [[gnu::visibility("default")]] int clock_gettime(clockid_t clock, timespec* time) noexcept {
  using Function = int (*)(clockid_t, timespec*);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "clock_gettime"));
  if (!counting) return real(clock, time);
  ++clock_reads;
  *time = still;
  return 0;
}

extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" [[gnu::visibility("default")]] void* malloc(std::size_t bytes) {
  allocations += counting;
  return __libc_malloc(bytes);
}

namespace {

const char* const kernels = R"(.version 7.0
.target sm_52
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 count, .param .f32 scale) { ret; }
)";

void must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  std::fprintf(stderr, "%s: %s\n", what, name ? name : "unknown");
  std::exit(1);
}

using Call = std::function<CUresult()>;

CUresult repeat(const Call& call, long times) {
  CUresult worst = CUDA_SUCCESS;
  for (long i = 0; i < times; ++i)
    if (const CUresult result = call(); result != CUDA_SUCCESS) worst = result;
  return worst;
}

volatile CUresult outcome;

}  // namespace

// Callgrind writes down what it has counted whenever one of these is left. They store something themselves, so that the
// compiler makes no jump of a last call.
extern "C" [[gnu::noipa]] void counting_begins() { outcome = CUDA_SUCCESS; }
extern "C" [[gnu::noipa]] void counting_ends(CUresult result) { outcome = result; }

int main(int argc, char** argv) {
  const long times = argc > 1 ? std::atol(argv[1]) : 100;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  must(cuInit(0), "cuInit");
  must(cuDeviceGet(&device, 0), "cuDeviceGet");
  must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cuModuleLoadData(&module, kernels), "cuModuleLoadData");
  must(cuModuleGetFunction(&add, module, "add"), "cuModuleGetFunction");
  must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  must(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  // As many as a program has, so that finding one costs what it does there.
  constexpr int block_count = 500;
  CUdeviceptr blocks[block_count];
  for (CUdeviceptr& block : blocks) must(cuMemAlloc(&block, 4096), "cuMemAlloc");
  const CUdeviceptr block = blocks[block_count / 2];

  unsigned count = 16;
  float scale = 1.0f;
  CUdeviceptr a = blocks[0], b = blocks[1], c = blocks[2];
  void* arguments[] = {&a, &b, &c, &count, &scale};
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 32;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const char* name = nullptr;

  const struct {
    const char* name;
    Call call;
  } kinds[] = {
      {"cuLaunchKernel", [&] { return cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr); }},
      {"cuLaunchKernelEx", [&] { return cuLaunchKernelEx(&config, add, arguments, nullptr); }},
      {"cuEventRecord", [&] { return cuEventRecord(event, stream); }},
      {"cuEventQuery", [&] { return cuEventQuery(event); }},
      {"cuStreamWaitEvent", [&] { return cuStreamWaitEvent(stream, event, 0); }},
      {"cuStreamIsCapturing",
       [&] {
         CUstreamCaptureStatus status;
         return cuStreamIsCapturing(stream, &status);
       }},
      {"cuStreamSynchronize", [&] { return cuStreamSynchronize(stream); }},
      {"cuMemsetD8Async", [&] { return cuMemsetD8Async(block, 0, 4096, stream); }},
      {"cuMemcpyHtoDAsync", [&] { return cuMemcpyHtoDAsync(block, &count, sizeof(count), stream); }},
      {"cuMemcpyDtoDAsync", [&] { return cuMemcpyDtoDAsync(a, b, 4096, stream); }},
      {"cuMemAlloc, cuMemFree",
       [&] {
         CUdeviceptr more = 0;
         const CUresult made = cuMemAlloc(&more, 4096);
         return made == CUDA_SUCCESS ? cuMemFree(more) : made;
       }},
      {"cuPointerGetAttribute",
       [&] {
         int ordinal;
         return cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block + 100);
       }},
      {"cuPointerGetAttributes",
       [&] {
         CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                         CU_POINTER_ATTRIBUTE_IS_MANAGED};
         unsigned type;
         int ordinal, managed;
         void* values[] = {&type, &ordinal, &managed};
         return cuPointerGetAttributes(3, wanted, values, block);
       }},
      {"cuCtxGetCurrent", [&] { return cuCtxGetCurrent(&context); }},
      {"cuCtxSetCurrent", [&] { return cuCtxSetCurrent(context); }},
      {"cuCtxGetDevice", [&] { return cuCtxGetDevice(&device); }},
      {"cuDeviceGetAttribute",
       [&] {
         int value;
         return cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
       }},
      {"cuFuncGetAttribute",
       [&] {
         int value;
         return cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, add);
       }},
      {"cuGetErrorName", [&] { return cuGetErrorName(CUDA_ERROR_NOT_READY, &name); }},
  };
  for (const auto& kind : kinds) {
    if (argc > 2 && std::strcmp(argv[2], kind.name) != 0) continue;
    // What the first call of a kind must ask or make, and what an earlier kind left to be done.
    must(repeat(kind.call, 3), kind.name);
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    const auto count_calls = [&](long number) {
      clock_reads = allocations = 0;
      clock_gettime(CLOCK_MONOTONIC, &still);
      counting = true;
      counting_begins();
      counting_ends(repeat(kind.call, number));
      counting = false;
      must(outcome, kind.name);
      must(cuCtxSynchronize(), "cuCtxSynchronize");
    };
    count_calls(times);
    const std::uint64_t clock_before = clock_reads, allocations_before = allocations;
    count_calls(2 * times);
    std::printf("%s\t%lld\t%lld\n", kind.name, static_cast<long long>(clock_reads - clock_before),
                static_cast<long long>(allocations - allocations_before));
    std::fflush(stdout);
  }
  return 0;
}
