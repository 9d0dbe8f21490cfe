#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include "driver/context.h"

using namespace fargpu::softgpu;

// There is nothing to profile with; starting and stopping is accepted, as without a tool.

CUresult cuProfilerInitialize(const char*, const char*, CUoutput_mode) {
  return entry([] { throw Failure(CUDA_ERROR_NOT_SUPPORTED); });
}
CUresult cuProfilerStart() {
  return entry([] { current_context(); });
}
CUresult cuProfilerStop() {
  return entry([] { current_context(); });
}
