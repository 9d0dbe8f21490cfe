// Filters of an image as plugins, compiled by NVRTC while the program runs (nvcc needs -lnvrtc), in both APIs mixed.

#include <cuda.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "program.h"

#define NVRTC(call) HOLDS((call) == NVRTC_SUCCESS)
#define DRIVER(call) HOLDS((call) == CUDA_SUCCESS)
// A function of the driver by its name. The headers of CUDA 13 declare some functions, such as cuCtxGetDevice, in their
// older form, while the name with the version 13.0 stands for a newer form with other parameters. So 12.8 is asked for.
#define ENTRY(name) entry<decltype(name)>(#name)

namespace {

constexpr int threads = 128;

const char* const pixel_header = R"(
#pragma once
struct Job { const unsigned int* in; unsigned int* out; int count; };
__device__ inline int place() { return blockIdx.x * blockDim.x + threadIdx.x; }
)";

const char* const filter_source = R"(
#include "pixel.h"
__constant__ unsigned int gain = OFFSET;
__device__ unsigned long long brightness = 7;
template <int kRadius>
__global__ void blur(Job job, unsigned int bias) {
  extern __shared__ unsigned int tile[];
  const int i = place();
  for (int t = threadIdx.x; t < blockDim.x + 2 * kRadius; t += blockDim.x) {
    const int source = i - (int)threadIdx.x + t - kRadius;
    tile[t] = source < 0 || source >= job.count ? 0 : job.in[source];
  }
  __syncthreads();
  if (i >= job.count) return;
  unsigned int sum = bias;
  for (int d = 0; d <= 2 * kRadius; ++d) sum += tile[threadIdx.x + d];
  job.out[i] = sum * gain;
  atomicAdd(&brightness, (unsigned long long)(sum & 255));
}
)";

const char* const caller_source = R"(
extern __device__ unsigned int weigh(unsigned int word);
extern "C" __global__ void apply(const unsigned int* in, unsigned int* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = weigh(in[i]);
}
)";

const char* const library_source = "__device__ unsigned int weigh(unsigned int word) { return word * 3u + 1u; }";

/// As the header has it.
struct Job {
  CUdeviceptr in, out;
  int count;
};

__global__ void invert(const uint32_t* in, uint32_t* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = ~in[i];
}

template <typename Function>
Function* entry(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  CUDA(cudaGetDriverEntryPointByVersion(name, &found, 12080, cudaEnableDefault, &result));
  HOLDS(result == cudaDriverEntryPointSuccess && found != nullptr);
  return reinterpret_cast<Function*>(found);
}

struct Compiled {
  nvrtcResult result;
  std::string ptx, log, lowered;
};

Compiled compile(const char* source, const char* expression, std::vector<const char*> options) {
  nvrtcProgram program = nullptr;
  const char* const name = "pixel.h";
  options.insert(options.end(), {"--gpu-architecture=compute_90", "--std=c++17"});
  NVRTC(nvrtcCreateProgram(&program, source, "plugin.cu", 1, &pixel_header, &name));
  if (expression != nullptr) NVRTC(nvrtcAddNameExpression(program, expression));
  Compiled compiled{nvrtcCompileProgram(program, int(options.size()), options.data()), {}, {}, {}};
  size_t size = 0;
  NVRTC(nvrtcGetProgramLogSize(program, &size));
  compiled.log.resize(size);
  NVRTC(nvrtcGetProgramLog(program, compiled.log.data()));
  if (compiled.result == NVRTC_SUCCESS) {
    NVRTC(nvrtcGetPTXSize(program, &size));
    compiled.ptx.resize(size);
    NVRTC(nvrtcGetPTX(program, compiled.ptx.data()));
    const char* lowered = nullptr;
    if (expression != nullptr) {
      NVRTC(nvrtcGetLoweredName(program, expression, &lowered));
      compiled.lowered = lowered;
    }
  }
  NVRTC(nvrtcDestroyProgram(&program));
  HOLDS(program == nullptr);
  return compiled;
}

struct Loaded {
  CUresult result;
  CUmodule module;
  size_t error_bytes;
  std::string errors;
};

Loaded load(const std::string& ptx) {
  std::vector<char> infos(4096), errors(4096);
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER,    CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER,   CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_OPTIMIZATION_LEVEL, CU_JIT_LOG_VERBOSE};
  void* values[] = {infos.data(),
                    reinterpret_cast<void*>(infos.size()),
                    errors.data(),
                    reinterpret_cast<void*>(errors.size()),
                    reinterpret_cast<void*>(4),
                    reinterpret_cast<void*>(1)};
  Loaded loaded{CUDA_SUCCESS, nullptr, 0, {}};
  loaded.result = ENTRY(cuModuleLoadDataEx)(&loaded.module, ptx.c_str(), 6, options, values);
  loaded.error_bytes = reinterpret_cast<size_t>(values[3]);  // how much of the buffer is used
  HOLDS(reinterpret_cast<size_t>(values[1]) <= infos.size() && loaded.error_bytes <= errors.size());
  loaded.errors.assign(errors.data(), strnlen(errors.data(), errors.size()));
  return loaded;
}

/// Plugins that do not compile, assemble or contain what is asked for. Afterwards everything works as before.
void check_broken_plugins(const std::string& good_ptx) {
  const Compiled broken = compile("extern \"C\" __global__ void f(int* p) { *p = undeclared_name; }", nullptr, {});
  HOLDS(broken.result == NVRTC_ERROR_COMPILATION);
  HOLDS(broken.log.find("undeclared_name") != std::string::npos && broken.log.find("plugin.cu(1)") == 0);
  HOLDS(std::string(nvrtcGetErrorString(broken.result)) == "NVRTC_ERROR_COMPILATION");
  std::string bad_ptx = good_ptx;
  const size_t place = bad_ptx.find("bar.sync");
  HOLDS(place != std::string::npos);
  bad_ptx.replace(place, 8, "bar.sink");
  const Loaded refused = load(bad_ptx);
  HOLDS(refused.result == CUDA_ERROR_INVALID_PTX);
  HOLDS(refused.error_bytes > 0 && !refused.errors.empty());
  const char *name = nullptr, *text = nullptr;
  DRIVER(ENTRY(cuGetErrorName)(refused.result, &name));
  DRIVER(ENTRY(cuGetErrorString)(refused.result, &text));
  HOLDS(std::strcmp(name, "CUDA_ERROR_INVALID_PTX") == 0 && std::strlen(text) > 0);
  HOLDS(ENTRY(cuGetErrorName)(CUresult(12345), &name) == CUDA_ERROR_INVALID_VALUE && name == nullptr);
  const Loaded good = load(good_ptx);
  HOLDS(good.result == CUDA_SUCCESS && good.errors.empty());
  CUfunction function = nullptr;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  HOLDS(ENTRY(cuModuleGetFunction)(&function, good.module, "no_such_kernel") == CUDA_ERROR_NOT_FOUND);
  HOLDS(ENTRY(cuModuleGetGlobal)(&address, &bytes, good.module, "no_such_global") == CUDA_ERROR_NOT_FOUND);
  DRIVER(ENTRY(cuModuleUnload)(good.module));
  CUDA(cudaPeekAtLastError());  // errors of the driver API are not the runtime's
}

/// The context of cudaFree(0) is the device's primary one. A new thread has none until it pushes that one.
CUcontext primary_context() {
  CUcontext current = nullptr, primary = nullptr, popped = nullptr;
  CUdevice device = -1;
  CUDA(cudaFree(nullptr));
  DRIVER(ENTRY(cuCtxGetCurrent)(&current));
  DRIVER(ENTRY(cuCtxGetDevice)(&device));
  DRIVER(ENTRY(cuDevicePrimaryCtxRetain)(&primary, device));
  HOLDS(current != nullptr && current == primary && device == 0);
  std::thread([&] {
    CUcontext own = primary;
    DRIVER(ENTRY(cuCtxGetCurrent)(&own));
    HOLDS(own == nullptr && ENTRY(cuCtxSynchronize)() == CUDA_ERROR_INVALID_CONTEXT);
    HOLDS(ENTRY(cuCtxPopCurrent)(&own) == CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  DRIVER(ENTRY(cuCtxPushCurrent)(primary));
  DRIVER(ENTRY(cuCtxPopCurrent)(&popped));
  HOLDS(popped == primary);
  DRIVER(ENTRY(cuCtxGetCurrent)(&current));
  HOLDS(current == primary);
  return primary;
}

/// Two plugins are compiled apart and linked: `apply` calls `weigh` of the other one.
CUmodule linked_plugin() {
  CUlinkState state = nullptr;
  DRIVER(ENTRY(cuLinkCreate)(0, nullptr, nullptr, &state));
  for (const char* source : {caller_source, library_source}) {
    Compiled part = compile(source, nullptr, {"--relocatable-device-code=true"});
    HOLDS(part.result == NVRTC_SUCCESS);
    DRIVER(
        ENTRY(cuLinkAddData)(state, CU_JIT_INPUT_PTX, part.ptx.data(), part.ptx.size(), "part", 0, nullptr, nullptr));
  }
  void* image = nullptr;
  size_t size = 0;
  DRIVER(ENTRY(cuLinkComplete)(state, &image, &size));
  HOLDS(image != nullptr && size > 0);
  CUmodule module = nullptr;
  DRIVER(ENTRY(cuModuleLoadData)(&module, image));
  DRIVER(ENTRY(cuLinkDestroy)(state));
  return module;
}

void check_occupancy(CUfunction blur) {
  int blocks = 0, runtime_blocks = 0, least = 0, best = 0, most = 0, bytes = 0;
  DRIVER(ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, blur, threads, 4096));
  DRIVER(ENTRY(cuOccupancyMaxPotentialBlockSize)(&least, &best, blur, nullptr, 4096, 0));
  DRIVER(ENTRY(cuFuncGetAttribute)(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, blur));
  HOLDS(blocks >= 1 && least >= 1 && best >= 32 && best <= most);
  DRIVER(ENTRY(cuFuncSetAttribute)(blur, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 << 10));
  DRIVER(ENTRY(cuFuncGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, blur));
  HOLDS(bytes == 64 << 10);
  // A kernel of the runtime is a function of the driver too, and both know the same about it.
  cudaFunction_t function = nullptr;
  CUDA(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(invert)));
  cudaFuncAttributes attributes{};
  CUDA(cudaFuncGetAttributes(&attributes, invert));
  DRIVER(ENTRY(cuFuncGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  HOLDS(bytes == attributes.numRegs);
  DRIVER(ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, function, threads, 0));
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&runtime_blocks, invert, threads, 0));
  HOLDS(blocks == runtime_blocks);
}

void check_entry_points() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  HOLDS(library != nullptr);
  int version = 0, by_runtime = 0;
  DRIVER(reinterpret_cast<decltype(cuDriverGetVersion)*>(dlsym(library, "cuDriverGetVersion"))(&version));
  CUDA(cudaDriverGetVersion(&by_runtime));
  HOLDS(version == by_runtime && version >= CUDART_VERSION);
  dlclose(library);
  void* found = library;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;
  CUDA(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &found, CUDART_VERSION, cudaEnableDefault, &result));
  HOLDS(found == nullptr && result == cudaDriverEntryPointSymbolNotFound);
  CUDA(cudaGetDriverEntryPointByVersion("cuLaunchKernelEx", &found, 11000, cudaEnableDefault, &result));
  HOLDS(found == nullptr && result == cudaDriverEntryPointVersionNotSufficent);
}

}  // namespace

int main(int count, char** words) {
  const int pixels = 500'000 * program::scale(count, words), blocks = (pixels + threads - 1) / threads;
  const size_t bytes = size_t(pixels) * sizeof(uint32_t);
  const CUcontext primary = primary_context();
  check_entry_points();
  const Compiled compiled = compile(filter_source, "blur<2>", {"-DOFFSET=11"});
  HOLDS(compiled.result == NVRTC_SUCCESS && compiled.ptx.find(compiled.lowered) != std::string::npos);
  check_broken_plugins(compiled.ptx);
  const Loaded loaded = load(compiled.ptx);
  HOLDS(loaded.result == CUDA_SUCCESS);
  const CUmodule linked = linked_plugin();
  CUfunction blur = nullptr, apply = nullptr;
  DRIVER(ENTRY(cuModuleGetFunction)(&blur, loaded.module, compiled.lowered.c_str()));
  DRIVER(ENTRY(cuModuleGetFunction)(&apply, linked, "apply"));
  check_occupancy(blur);

  std::vector<uint32_t> source(pixels), after_blur(pixels), after_all(pixels);
  uint32_t state = 1;
  for (uint32_t& pixel : source) pixel = (state = state * 1664525u + 1013904223u) >> 8;
  uint32_t *first = nullptr, *second = nullptr, *third = nullptr;
  for (uint32_t** memory : {&first, &second, &third}) CUDA(cudaMalloc(memory, bytes));
  CUDA(cudaMemcpy(first, source.data(), bytes, cudaMemcpyHostToDevice));

  CUdeviceptr gain = 0, brightness = 0;
  size_t gain_bytes = 0, brightness_bytes = 0;
  DRIVER(ENTRY(cuModuleGetGlobal)(&gain, &gain_bytes, loaded.module, "gain"));
  DRIVER(ENTRY(cuModuleGetGlobal)(&brightness, &brightness_bytes, loaded.module, "brightness"));
  HOLDS(gain_bytes == 4 && brightness_bytes == 8);
  uint32_t gain_value = 0;
  CUDA(cudaMemcpy(&gain_value, reinterpret_cast<void*>(gain), sizeof gain_value, cudaMemcpyDeviceToHost));
  HOLDS(gain_value == 11);
  gain_value = 5;
  DRIVER(ENTRY(cuMemcpyHtoD)(gain, &gain_value, sizeof gain_value));
  DRIVER(ENTRY(cuCtxSynchronize)());  // copies of pageable memory may be under way still

  // The arguments of `blur` lie in one buffer, each where its alignment puts it.
  struct {
    Job job;
    unsigned int bias;
  } arguments{{reinterpret_cast<CUdeviceptr>(first), reinterpret_cast<CUdeviceptr>(second), pixels}, 9};
  size_t argument_bytes = offsetof(decltype(arguments), bias) + sizeof arguments.bias;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &argument_bytes,
                   CU_LAUNCH_PARAM_END};
  const unsigned int shared = (threads + 4) * sizeof(uint32_t);
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  void* both[] = {&arguments.job, &arguments.bias};
  HOLDS(ENTRY(cuLaunchKernel)(blur, blocks, 1, 1, threads, 1, 1, shared, stream, both, extra) ==
        CUDA_ERROR_INVALID_VALUE);
  CUevent blurred = nullptr;
  // A worker thread launches the plugin, in the pushed context, on the stream of the runtime.
  std::thread([&] {
    CUcontext popped = nullptr;
    DRIVER(ENTRY(cuCtxPushCurrent)(primary));
    DRIVER(ENTRY(cuLaunchKernel)(blur, blocks, 1, 1, threads, 1, 1, shared, stream, nullptr, extra));
    DRIVER(ENTRY(cuEventCreate)(&blurred, CU_EVENT_DISABLE_TIMING));
    DRIVER(ENTRY(cuEventRecord)(blurred, stream));
    DRIVER(ENTRY(cuCtxPopCurrent)(&popped));
    HOLDS(popped == primary);
  }).join();
  cudaStream_t other;
  CUDA(cudaStreamCreate(&other));
  CUDA(cudaStreamWaitEvent(other, blurred));
  int pixel_count = pixels;
  void* plain[] = {&second, &third, &pixel_count};
  DRIVER(ENTRY(cuLaunchKernel)(apply, blocks, 1, 1, threads, 1, 1, 0, other, plain, nullptr));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemcpyAsync(after_blur.data(), second, bytes, cudaMemcpyDeviceToHost, stream));
  invert<<<blocks, threads, 0, other>>>(third, third, pixels);
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpyAsync(after_all.data(), third, bytes, cudaMemcpyDeviceToHost, other));
  CUDA(cudaStreamSynchronize(stream));
  DRIVER(ENTRY(cuStreamSynchronize)(other));

  unsigned long long expected_brightness = 7, found_brightness = 0;
  for (int i = 0; i < pixels; ++i) {
    uint32_t sum = 9;
    for (int d = -2; d <= 2; ++d) sum += i + d < 0 || i + d >= pixels ? 0 : source[i + d];
    expected_brightness += sum & 255;
    HOLDS(after_blur[i] == sum * 5);
    HOLDS(after_all[i] == ~(sum * 5 * 3 + 1));
  }
  DRIVER(ENTRY(cuMemcpyDtoH)(&found_brightness, brightness, sizeof found_brightness));
  HOLDS(found_brightness == expected_brightness);

  DRIVER(ENTRY(cuEventDestroy)(blurred));
  for (CUmodule module : {loaded.module, linked}) DRIVER(ENTRY(cuModuleUnload)(module));
  for (cudaStream_t each : {stream, other}) CUDA(cudaStreamDestroy(each));
  for (uint32_t* memory : {first, second, third}) CUDA(cudaFree(memory));
  DRIVER(ENTRY(cuDevicePrimaryCtxRelease)(0));
  char line[120];
  std::snprintf(line, sizeof line, "three plugins filtered %d pixels, brightness %llu", pixels, found_brightness);
  return program::passed(line);
}
