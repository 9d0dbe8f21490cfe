// Profiler control: without a profiler attached, starting and stopping succeeds and does nothing, here as locally.

#include "client_hand.h"

namespace fargpu::client::hand {

CUresult cuProfilerStart(Thread&) { return CUDA_SUCCESS; }
CUresult cuProfilerStop(Thread&) { return CUDA_SUCCESS; }

}  // namespace fargpu::client::hand
