// Adds two vectors with the CUDA Driver API alone. The kernel is PTX, compiled by the driver when it is loaded.

#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                               \
  do {                                                            \
    const CUresult status = (call);                               \
    if (status != CUDA_SUCCESS) {                                 \
      const char* name = nullptr;                                 \
      cuGetErrorName(status, &name);                              \
      std::fprintf(stderr, "%s: %s\n", #call, name ? name : "?"); \
      std::exit(1);                                               \
    }                                                             \
  } while (0)

// extern "C" __global__ void add(const int* a, const int* b, int* sum, int n)
static const char* const kernel = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 sum, .param .u32 n)
{
  .reg .pred %out;
  .reg .b32 %r<8>;
  .reg .b64 %rd<12>;
  ld.param.u64 %rd1, [a];
  ld.param.u64 %rd2, [b];
  ld.param.u64 %rd3, [sum];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.s32 %out, %r5, %r1;
  @%out bra done;
  cvta.to.global.u64 %rd4, %rd1;
  cvta.to.global.u64 %rd5, %rd2;
  cvta.to.global.u64 %rd6, %rd3;
  mul.wide.s32 %rd7, %r5, 4;
  add.s64 %rd8, %rd4, %rd7;
  add.s64 %rd9, %rd5, %rd7;
  add.s64 %rd10, %rd6, %rd7;
  ld.global.u32 %r6, [%rd8];
  ld.global.u32 %r7, [%rd9];
  add.s32 %r6, %r6, %r7;
  st.global.u32 [%rd10], %r6;
done:
  ret;
}
)";

int main() {
  constexpr int n = 100000;
  std::vector<int> a(n), b(n), sum(n);
  for (int i = 0; i < n; ++i) {
    a[i] = 3 * i;
    b[i] = 7 - i;
  }
  CHECK(cuInit(0));
  CUdevice device;
  CHECK(cuDeviceGet(&device, 0));
  CUcontext context;
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CUmodule module;
  CUfunction add;
  CHECK(cuModuleLoadData(&module, kernel));
  CHECK(cuModuleGetFunction(&add, module, "add"));
  CUdeviceptr da, db, dsum;
  CHECK(cuMemAlloc(&da, n * sizeof(int)));
  CHECK(cuMemAlloc(&db, n * sizeof(int)));
  CHECK(cuMemAlloc(&dsum, n * sizeof(int)));
  CUstream stream;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuMemcpyHtoDAsync(da, a.data(), n * sizeof(int), stream));
  CHECK(cuMemcpyHtoDAsync(db, b.data(), n * sizeof(int), stream));
  int count = n;
  void* arguments[] = {&da, &db, &dsum, &count};
  CHECK(cuLaunchKernel(add, (n + 127) / 128, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr));
  CHECK(cuMemcpyDtoHAsync(sum.data(), dsum, n * sizeof(int), stream));
  CHECK(cuStreamSynchronize(stream));
  for (int i = 0; i < n; ++i) {
    if (sum[i] != a[i] + b[i]) {
      std::fprintf(stderr, "element %d is %d instead of %d\n", i, sum[i], a[i] + b[i]);
      return 1;
    }
  }
  CHECK(cuMemFree(da));
  CHECK(cuMemFree(db));
  CHECK(cuMemFree(dsum));
  CHECK(cuStreamDestroy(stream));
  CHECK(cuModuleUnload(module));
  CHECK(cuDevicePrimaryCtxRelease(device));
  std::printf("vector addition of %d elements by the driver API: PASSED\n", n);
  return 0;
}
