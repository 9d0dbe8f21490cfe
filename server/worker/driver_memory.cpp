#include "driver_memory.h"

#include <algorithm>

namespace fargpu::server {

namespace {

// What a new context has (measured, driver 580; cuCtxGetLimit).
constexpr std::uint64_t heap_at_first = 8u << 20, prints_at_first = 1u << 20;
constexpr std::uint32_t local_at_first = 1024;

}  // namespace

DriverMemory::DriverMemory(DriverTable& driver, Ledger& ledger, int device, CUdevice driver_device, std::uint64_t number)
    : driver_(driver), ledger_(ledger), device_(device), number_(number), kernel_local_(local_at_first) {
  int processors = 0, threads = 0;
  std::size_t bytes = 0;
  driver_.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, driver_device);
  driver_.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, driver_device);
  driver_.cuDeviceTotalMem_v2(&bytes, driver_device);
  threads_ = static_cast<std::uint64_t>(std::max(processors, 0)) * static_cast<std::uint64_t>(std::max(threads, 0));
  device_bytes_ = bytes;
}

DriverMemory::~DriverMemory() { ledger_.credit(device_, heap_ + prints_ + local_); }

// No more than the device has: beyond that the driver says itself what is wrong.
std::uint64_t DriverMemory::beyond(std::uint64_t bytes, std::uint64_t had, std::uint64_t each) const {
  if (bytes <= had || each == 0) return 0;
  return bytes - had > device_bytes_ / each ? device_bytes_ : (bytes - had) * each;
}

std::uint64_t DriverMemory::local_cost(std::uint64_t bytes) const { return beyond(bytes, local_at_first, threads_); }

CUresult DriverMemory::set_limit(CUlimit limit, std::size_t value) {
  std::uint64_t unused = 0;
  std::uint64_t& charged = limit == CU_LIMIT_MALLOC_HEAP_SIZE    ? heap_
                           : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? prints_
                           : limit == CU_LIMIT_STACK_SIZE       ? local_
                                                                : unused;
  const std::uint64_t before = charged;
  const std::uint64_t after = limit == CU_LIMIT_MALLOC_HEAP_SIZE    ? beyond(value, heap_at_first)
                              : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? beyond(value, prints_at_first)
                              : limit == CU_LIMIT_STACK_SIZE       ? local_cost(std::max<std::uint64_t>(value, kernel_local_))
                                                                   : 0;
  if (after > before && !ledger_.charge(device_, after - before)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = driver_.cuCtxSetLimit(limit, value);
  const std::uint64_t kept = result == CUDA_SUCCESS ? after : before;
  ledger_.credit(device_, std::max(before, after) - kept);
  charged = kept;
  if (result == CUDA_SUCCESS && limit == CU_LIMIT_STACK_SIZE) stack_limit_ = value;
  return result;
}

CUresult DriverMemory::grow_local(std::uint32_t bytes) {
  const std::uint64_t after = local_cost(std::max<std::uint64_t>(bytes, stack_limit_));
  if (after > local_) {
    if (!ledger_.charge(device_, after - local_)) return CUDA_ERROR_OUT_OF_MEMORY;
    local_ = after;
  }
  kernel_local_ = bytes;
  return CUDA_SUCCESS;
}

}  // namespace fargpu::server
