#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "driver/handle_table.h"
#include "memory/page_table.h"

namespace fargpu::softgpu {

/// A pool of a device's memory for allocations in stream order. Memory that is freed goes back to
/// the device when the stream gets there, so nothing stays reserved.
class MemoryPool {
 public:
  MemoryPool(int device, uint64_t bytes_max) : device_(device), bytes_max_(bytes_max) {}

  int device() const { return device_; }
  CUmemoryPool handle() { return reinterpret_cast<CUmemoryPool>(this); }

  /// Throws OUT_OF_MEMORY, also if the pool is to be no larger.
  DeviceAddress allocate(uint64_t bytes);
  void note_freed(uint64_t bytes) { used_bytes_ -= bytes; }

  uint64_t used_bytes() const { return used_bytes_; }
  std::atomic<uint64_t> used_high{0};
  std::atomic<uint64_t> release_threshold{0};
  std::atomic<int> reuse_follow_event{1};
  std::atomic<int> reuse_opportunistic{1};
  std::atomic<int> reuse_internal{1};

 private:
  const int device_;
  const uint64_t bytes_max_;  // zero for no bound
  std::atomic<uint64_t> used_bytes_{0};
};

using MemoryPoolTable = HandleTable<MemoryPool, CUmemoryPool>;

/// The pool a device allocates from unless told otherwise, made when it is first asked for.
CUmemoryPool default_pool(int device);
CUmemoryPool current_pool(int device);

}  // namespace fargpu::softgpu
