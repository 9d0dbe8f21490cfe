#include "driver/device_heap.h"

namespace fargpu::softgpu {

bool DeviceHeap::set_limit(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (is_taken_) return bytes == limit_bytes_;
  limit_bytes_ = bytes;
  return true;
}

uint64_t DeviceHeap::limit() const {
  std::lock_guard lock(mutex_);
  return limit_bytes_;
}

bool DeviceHeap::release(DeviceAddress address) {
  std::lock_guard lock(mutex_);
  auto found = sizes_.find(address);
  if (found == sizes_.end()) return false;
  free_.add(address, found->second);
  sizes_.erase(found);
  return true;
}

void DeviceHeap::reset() {
  std::lock_guard lock(mutex_);
  is_taken_ = false;
  free_ = RangeAllocator();
  sizes_.clear();
}

}  // namespace fargpu::softgpu
