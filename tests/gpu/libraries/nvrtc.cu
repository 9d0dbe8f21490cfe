// NVRTC: programs compiled at run time, loaded by the driver API's newer calls and by the older ones.

#include <cuda.h>
#include <nvJitLink.h>
#include <nvrtc.h>

#include <string>

#include "harness.h"

namespace {

struct Program {
  nvrtcProgram handle;
  nvrtcResult result;
  std::string log;

  Program(const char* source, std::vector<const char*> options, std::vector<const char*> names = {},
          std::vector<const char*> headers = {}, std::vector<const char*> header_names = {}) {
    OK(nvrtcCreateProgram(&handle, source, "program.cu", static_cast<int>(headers.size()), headers.data(),
                          header_names.data()));
    for (const char* name : names) OK(nvrtcAddNameExpression(handle, name));
    result = nvrtcCompileProgram(handle, static_cast<int>(options.size()), options.data());
    size_t bytes;
    OK(nvrtcGetProgramLogSize(handle, &bytes));
    log.resize(bytes);
    OK(nvrtcGetProgramLog(handle, log.data()));
  }
  ~Program() { nvrtcDestroyProgram(&handle); }
  void compiled() const {
    if (result != NVRTC_SUCCESS) std::fprintf(stderr, "%s\n", log.c_str());
    OK(result);
  }
  std::string cubin() const {
    compiled();
    size_t bytes;
    OK(nvrtcGetCUBINSize(handle, &bytes));
    std::string image(bytes, 0);
    OK(nvrtcGetCUBIN(handle, image.data()));
    return image;
  }
  std::string ptx() const {
    compiled();
    size_t bytes;
    OK(nvrtcGetPTXSize(handle, &bytes));
    std::string image(bytes, 0);
    OK(nvrtcGetPTX(handle, image.data()));
    return image;
  }
  std::string lto() const {
    compiled();
    size_t bytes;
    OK(nvrtcGetLTOIRSize(handle, &bytes));
    std::string image(bytes, 0);
    OK(nvrtcGetLTOIR(handle, image.data()));
    return image;
  }
};

const char* const scale = R"(extern "C" __global__ void scale(float* x, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
})";

CUfunction function_of(const std::string& image, const char* name) {
  OK(cudaFree(nullptr));
  CUmodule module;
  CUfunction function;
  OK(cuModuleLoadData(&module, image.data()));
  OK(cuModuleGetFunction(&function, module, name));
  return function;
}

void run_scale(const std::string& image) {
  const CUfunction function = function_of(image, "scale");
  Memory<float> x(whole<float>(1000));
  float* pointer = x.data();
  float by = 2.5f;
  int n = 1000;
  void* arguments[] = {&pointer, &by, &n};
  OK(cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
  show("x", x);
}

}  // namespace

CASE(cubin) { run_scale(Program(scale, {"--gpu-architecture=sm_90"}).cubin()); }
CASE(ptx) { run_scale(Program(scale, {"--gpu-architecture=compute_90"}).ptx()); }
CASE(options) {
  run_scale(Program(scale, {"--gpu-architecture=sm_90", "--use_fast_math", "-lineinfo", "--maxrregcount=32"}).cubin());
}
CASE(debug) { run_scale(Program(scale, {"--gpu-architecture=sm_90", "-G"}).cubin()); }

CASE(names) {
  OK(cudaFree(nullptr));
  Program program(
      "template <class T, int by> __global__ void times(T* x) { x[threadIdx.x] *= by; } namespace inner { __device__ "
      "int number = 7; }",
      {"--gpu-architecture=sm_90"}, {"times<double, 3>", "&inner::number"});
  OK(program.result);
  const char *kernel, *variable;
  OK(nvrtcGetLoweredName(program.handle, "times<double, 3>", &kernel));
  OK(nvrtcGetLoweredName(program.handle, "&inner::number", &variable));
  const std::string image = program.cubin();
  CUmodule module;
  CUfunction function;
  CUdeviceptr address;
  size_t bytes;
  OK(cuModuleLoadData(&module, image.data()));
  OK(cuModuleGetFunction(&function, module, kernel));
  OK(cuModuleGetGlobal(&address, &bytes, module, variable));
  int number;
  OK(cuMemcpyDtoH(&number, address, sizeof number));
  std::printf("%s %s %d\n", kernel, variable, number);
  Memory<double> x(whole<double>(64));
  double* pointer = x.data();
  void* arguments[] = {&pointer};
  OK(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr));
  show("x", x);
}

CASE(headers) {
  run_scale(
      Program("#include \"mine.h\"\nKERNEL scale(float* x, float by, int n) { if (AT < n) x[AT] *= by; }",
              {"--gpu-architecture=sm_90"}, {},
              {"#define KERNEL extern \"C\" __global__ void\n#define AT (blockIdx.x * blockDim.x + threadIdx.x)\n"},
              {"mine.h"})
          .cubin());
}

CASE(mistakes) {
  Program program("extern \"C\" __global__ void broken() { unknown(); }", {"--gpu-architecture=sm_90"});
  std::printf("%d\n%s\n", program.result, program.log.c_str());
  Program other(scale, {"--no-such-option"});
  std::printf("%d\n", other.result);
}

CASE(library) {
  const std::string image = Program(scale, {"--gpu-architecture=sm_90"}).cubin();
  OK(cudaFree(nullptr));
  CUlibrary loaded;
  CUkernel kernel;
  OK(cuLibraryLoadData(&loaded, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&kernel, loaded, "scale"));
  Memory<float> x(whole<float>(1000));
  float* pointer = x.data();
  float by = 3;
  int n = 1000;
  void* arguments[] = {&pointer, &by, &n};
  OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 8, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
  show("x", x);
  OK(cuLibraryUnload(loaded));
}

CASE(linked_by_driver) {
  OK(cudaFree(nullptr));
  const std::string first = Program("extern \"C\" __device__ float twice(float x) { return 2 * x; }",
                                    {"--gpu-architecture=compute_90", "--relocatable-device-code=true"})
                                .ptx();
  const std::string second =
      Program(
          "extern \"C\" __device__ float twice(float); extern \"C\" __global__ void scale(float* x, float by, int n) {"
          " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = twice(x[i]) * by; }",
          {"--gpu-architecture=compute_90", "--relocatable-device-code=true"})
          .ptx();
  CUlinkState link;
  OK(cuLinkCreate(0, nullptr, nullptr, &link));
  OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char*>(first.data()), first.size(), "first", 0, nullptr,
                   nullptr));
  OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char*>(second.data()), second.size(), "second", 0, nullptr,
                   nullptr));
  void* image;
  size_t bytes;
  OK(cuLinkComplete(link, &image, &bytes));
  run_scale(std::string(static_cast<char*>(image), bytes));
  OK(cuLinkDestroy(link));
}

CASE(linked_with_optimisation) {
  const std::string first = Program("extern \"C\" __device__ float twice(float x) { return 2 * x; }",
                                    {"--gpu-architecture=compute_90", "-dlto", "-rdc=true"})
                                .lto();
  const std::string second =
      Program(
          "extern \"C\" __device__ float twice(float); extern \"C\" __global__ void scale(float* x, float by, int n) {"
          " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = twice(x[i]) + by; }",
          {"--gpu-architecture=compute_90", "-dlto", "-rdc=true"})
          .lto();
  nvJitLinkHandle link;
  const char* options[] = {"-arch=sm_90", "-lto"};
  OK(nvJitLinkCreate(&link, 2, options));
  OK(nvJitLinkAddData(link, NVJITLINK_INPUT_LTOIR, first.data(), first.size(), "first"));
  OK(nvJitLinkAddData(link, NVJITLINK_INPUT_LTOIR, second.data(), second.size(), "second"));
  OK(nvJitLinkComplete(link));
  size_t bytes;
  OK(nvJitLinkGetLinkedCubinSize(link, &bytes));
  std::string image(bytes, 0);
  OK(nvJitLinkGetLinkedCubin(link, image.data()));
  OK(nvJitLinkDestroy(&link));
  run_scale(image);
}

CASE(jit_options) {
  OK(cudaFree(nullptr));
  const std::string image = Program(scale, {"--gpu-architecture=compute_90"}).ptx();
  char log[4096] = {};
  unsigned registers = 24;
  CUjit_option options[] = {CU_JIT_MAX_REGISTERS, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {reinterpret_cast<void*>(static_cast<uintptr_t>(registers)), log,
                    reinterpret_cast<void*>(sizeof log)};
  CUmodule module;
  OK(cuModuleLoadDataEx(&module, image.data(), 3, options, values));
  CUfunction function;
  OK(cuModuleGetFunction(&function, module, "scale"));
  int used;
  OK(cuFuncGetAttribute(&used, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  HOLDS(used > 0 && used <= 24);
  const std::string broken = ".version 8.0\n.target sm_90\n.address_size 64\nnonsense;\n";
  const CUresult result = cuModuleLoadDataEx(&module, broken.c_str(), 3, options, values);
  std::printf("%d %d\n", result, log[0] != 0);
}

CASE(clusters) {
  const std::string image =
      Program(R"(#include <cooperative_groups.h>
extern "C" __global__ void __cluster_dims__(4) neighbours(int* out) {
  __shared__ int own;
  auto cluster = cooperative_groups::this_cluster();
  if (threadIdx.x == 0) own = blockIdx.x;
  cluster.sync();
  if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&own, (cluster.block_rank() + 1) % 4);
  cluster.sync();
})",
              {"--gpu-architecture=sm_90", "-I/usr/local/cuda/include", "-I/usr/local/cuda/include/cccl"})
          .cubin();
  const CUfunction function = function_of(image, "neighbours");
  Memory<int> out(16);
  int* pointer = out.data();
  void* arguments[] = {&pointer};
  OK(cuLaunchKernel(function, 16, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
  show("out", out);
}
