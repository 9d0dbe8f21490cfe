#include "driver/memory_pool.h"

#include "driver/driver.h"

namespace fargpu::softgpu {

DeviceAddress MemoryPool::allocate(uint64_t bytes) {
  uint64_t used = used_bytes_.fetch_add(bytes) + bytes;
  try {
    require(bytes_max_ == 0 || used <= bytes_max_, CUDA_ERROR_OUT_OF_MEMORY);
    DeviceAddress address = addresses().allocate(device_, 0, bytes, handle());
    uint64_t high = used_high;
    while (used > high && !used_high.compare_exchange_weak(high, used)) {}
    return address;
  } catch (const Failure&) {
    used_bytes_ -= bytes;
    throw;
  }
}

CUmemoryPool default_pool(int ordinal) {
  Device& device = Driver::get().device(ordinal);
  std::lock_guard lock(device.pool_mutex);
  if (device.default_pool == nullptr)
    device.default_pool = MemoryPoolTable::instance().add(std::make_shared<MemoryPool>(ordinal, 0));
  return device.default_pool;
}

CUmemoryPool current_pool(int ordinal) {
  CUmemoryPool otherwise = default_pool(ordinal);
  Device& device = Driver::get().device(ordinal);
  std::lock_guard lock(device.pool_mutex);
  return device.current_pool != nullptr ? device.current_pool : otherwise;
}

}  // namespace fargpu::softgpu
