#pragma once
// What the CUDA programs of the benchmark share: calls that must succeed, the primary context, kernels by name.

#include <cuda.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace bench {

inline void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  throw std::runtime_error(std::string(call) + " gives " + (name ? name : "an unknown error"));
}
#define OK(call) ::bench::check((call), #call)

// `add` is a kernel of four parameters (24 bytes) such as elementwise ones have. `spin` keeps one thread busy for a
// number of turns.
inline constexpr const char* kernels = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .entry add(.param .u64 out, .param .u64 in, .param .u32 n, .param .u32 step)
{
  .reg .pred %none;
  .reg .b32 %r<8>;
  .reg .b64 %rd<8>;
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  setp.ge.u32 %none, %r2, %r1;
  @%none bra done;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [in];
  ld.param.u32 %r3, [step];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd2, %rd2, %rd3;
  add.s64 %rd1, %rd1, %rd3;
  ld.global.u32 %r4, [%rd2];
  add.u32 %r4, %r4, %r3;
  st.global.u32 [%rd1], %r4;
done:
  ret;
}
.visible .entry spin(.param .u64 out, .param .u64 turns)
{
  .reg .pred %more;
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [turns];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, 1;
turn:
  mad.lo.u32 %r1, %r1, 1664525, 1013904223;
  sub.u64 %rd2, %rd2, 1;
  setp.ne.u64 %more, %rd2, 0;
  @%more bra turn;
  st.global.u32 [%rd1], %r1;
  ret;
}
)";

inline constexpr std::uint64_t add_argument_bytes = 24;

/// The first device's primary context, made current, and the kernels above.
struct Program {
  Program() {
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, kernels));
    OK(cuModuleGetFunction(&add, module, "add"));
    OK(cuModuleGetFunction(&spin, module, "spin"));
    OK(cuMemAlloc(&memory, 4096));
    OK(cuMemsetD8(memory, 0, 4096));
    launch(nullptr);
    launch_spin(nullptr, 1);
    OK(cuCtxSynchronize());
  }

  void launch(CUstream stream) const {
    CUdeviceptr out = memory, in = memory;
    std::uint32_t n = 32, step = 1;
    void* arguments[] = {&out, &in, &n, &step};
    OK(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
  }

  void launch_spin(CUstream stream, std::uint64_t turns) const {
    CUdeviceptr out = memory;
    void* arguments[] = {&out, &turns};
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
  }

  CUdevice device = 0;
  CUcontext context{};
  CUmodule module{};
  CUfunction add{}, spin{};
  CUdeviceptr memory = 0;
};

}  // namespace bench
