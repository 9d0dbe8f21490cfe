#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "memory/page_table.h"
#include "memory/range_allocator.h"

namespace fargpu::softgpu {

/// The heap that malloc and free use within kernels. Its memory is taken when a kernel first asks.
class DeviceHeap {
 public:
  /// Can be changed until the first allocation; false afterwards.
  bool set_limit(uint64_t bytes);
  uint64_t limit() const;

  /// Zero if there is no room. `take_memory` gives the address of the whole heap.
  template <class TakeMemory>
  DeviceAddress allocate(uint64_t bytes, TakeMemory take_memory);
  bool release(DeviceAddress address);
  /// Forgets everything: the memory went with its context.
  void reset();

 private:
  static constexpr uint64_t align = 16;

  mutable std::mutex mutex_;
  uint64_t limit_bytes_ = uint64_t{8} << 20;
  bool is_taken_ = false;
  RangeAllocator free_;
  std::unordered_map<DeviceAddress, uint64_t> sizes_;
};

template <class TakeMemory>
DeviceAddress DeviceHeap::allocate(uint64_t bytes, TakeMemory take_memory) {
  std::lock_guard lock(mutex_);
  if (!is_taken_) {
    is_taken_ = true;
    if (DeviceAddress base = take_memory(limit_bytes_)) free_.add(base, limit_bytes_);
  }
  if (bytes == 0 || bytes > limit_bytes_) return 0;
  uint64_t rounded = (bytes + align - 1) / align * align;
  auto place = free_.take(rounded, align);
  if (!place) return 0;
  sizes_[*place] = rounded;
  return *place;
}

}  // namespace fargpu::softgpu
