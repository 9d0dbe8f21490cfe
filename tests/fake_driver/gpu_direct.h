#pragma once
// The fake driver of a GPU that a card can reach.

#include <cuda.h>

#include <atomic>
#include <cstddef>

#include "driver_table.h"
#include "fake.h"

namespace fargpu::fake {

/// What the GPU and its driver say of themselves, and do.
struct Gpu {
  bool supported = true, mapped = true, dma_buf = true;
  int ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, flush_options = 0;
  std::atomic<bool> copies_nothing{false};         // of what is not the program's
  std::atomic<unsigned> retained{0}, released{0};  // its primary context, for that
  std::atomic<unsigned> flushes{0};                // of what a card has written
};
inline Gpu gpu;

/// The fake driver, as the memory of GPUDirect has it.
inline server::DriverTable& driver_of_gpu_direct() {
  static server::DriverTable changed = [] {
    server::DriverTable all = FakeDriver::instance().table();
    all.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute, CUdevice device) {
      switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: *value = gpu.supported; break;
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: *value = gpu.mapped; break;
        case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: *value = gpu.dma_buf; break;
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: *value = gpu.ordering; break;
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: *value = gpu.flush_options; break;
        default: return FakeDriver::instance().table().cuDeviceGetAttribute(value, attribute, device);
      }
      return CUDA_SUCCESS;
    };
    all.cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice device) {
      ++gpu.retained;
      return FakeDriver::instance().table().cuDevicePrimaryCtxRetain(context, device);
    };
    all.cuDevicePrimaryCtxRelease_v2 = [](CUdevice device) {
      ++gpu.released;
      return FakeDriver::instance().table().cuDevicePrimaryCtxRelease_v2(device);
    };
    all.cuMemcpyDtoHAsync_v2 = [](void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
      if (gpu.copies_nothing) return CUDA_ERROR_ILLEGAL_ADDRESS;
      return FakeDriver::instance().table().cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
    };
    all.cuFlushGPUDirectRDMAWrites = [](CUflushGPUDirectRDMAWritesTarget target,
                                        CUflushGPUDirectRDMAWritesScope scope) {
      ++gpu.flushes;
      return FakeDriver::instance().table().cuFlushGPUDirectRDMAWrites(target, scope);
    };
    return all;
  }();
  return changed;
}

}  // namespace fargpu::fake
