// Profiler control: without a profiler attached, starting and stopping succeeds and does nothing, here as locally.

#include "client_hand.h"

namespace fargpu::client::hand {

// As NVIDIA's driver answers since CUDA 12.0.
CUresult cuProfilerInitialize(Thread&, const char*, const char*, CUoutput_mode) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuProfilerStart(Thread&) { return CUDA_SUCCESS; }
CUresult cuProfilerStop(Thread&) { return CUDA_SUCCESS; }

}  // namespace fargpu::client::hand
