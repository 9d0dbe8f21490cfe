// Takes memory, launches a kernel that ends only when its flag is set, says so, and waits for it. The argument is the
// image with it.

#include <cuda.h>

#include <cstdio>

#define OK(call)                                                 \
  do {                                                           \
    if (CUresult result = (call); result != CUDA_SUCCESS) {      \
      std::fprintf(stderr, "%s gives %d\n", #call, int(result)); \
      return 1;                                                  \
    }                                                            \
  } while (false)

int main(int, char** arguments) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction endless;
  CUdeviceptr flag;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuCtxCreate(&context, nullptr, 0, device));
  OK(cuModuleLoad(&module, arguments[1]));
  OK(cuModuleGetFunction(&endless, module, "endless"));
  constexpr size_t bytes = size_t{256} << 20;
  OK(cuMemAlloc(&flag, bytes));
  OK(cuMemsetD8(flag, 0, bytes));
  OK(cuCtxSynchronize());
  void* parameters[] = {&flag};
  OK(cuLaunchKernel(endless, 64, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
  std::puts("running");
  std::fflush(stdout);
  OK(cuCtxSynchronize());
}
