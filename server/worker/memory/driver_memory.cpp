#include "driver_memory.h"

#include <algorithm>

namespace fargpu::server {

namespace {

// What a new context has (measured, driver 580; cuCtxGetLimit).
constexpr std::uint64_t heap_at_first = 8u << 20, prints_at_first = 1u << 20;
constexpr std::uint32_t local_at_first = 1024;
// Kernels that launch kernels: at first for so many levels that wait for what they launched, of at most so much each,
// and for so many launches that have not begun (CUDA C++ Programming Guide, "CUDA Dynamic Parallelism", memory
// footprint and configuration options). What is kept of a launch is not written anywhere: its parameters are at most so
// long.
constexpr std::uint64_t depth_at_first = 2, depth_each = 150u << 20;
constexpr std::uint64_t launches_at_first = 2048, launches_each = 4096;

}  // namespace

DriverMemory::DriverMemory(DriverTable& driver, Ledger& ledger, int device, CUdevice driver_device,
                           std::uint64_t number)
    : driver_(driver), ledger_(ledger), device_(device), number_(number), kernel_local_(local_at_first) {
  int processors = 0, threads = 0;
  std::size_t bytes = 0;
  driver_.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, driver_device);
  driver_.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, driver_device);
  driver_.cuDeviceTotalMem_v2(&bytes, driver_device);
  threads_ = static_cast<std::uint64_t>(std::max(processors, 0)) * static_cast<std::uint64_t>(std::max(threads, 0));
  device_bytes_ = bytes;
}

DriverMemory::~DriverMemory() { ledger_.credit(device_, heap_ + prints_ + local_ + depth_ + launches_); }

// No more than the device has: beyond that the driver says itself what is wrong.
std::uint64_t DriverMemory::beyond(std::uint64_t bytes, std::uint64_t had, std::uint64_t each) const {
  if (bytes <= had || each == 0) return 0;
  return bytes - had > device_bytes_ / each ? device_bytes_ : (bytes - had) * each;
}

std::uint64_t DriverMemory::local_cost(std::uint64_t bytes) const { return beyond(bytes, local_at_first, threads_); }

CUresult DriverMemory::set_limit(CUlimit limit, std::size_t value) {
  std::uint64_t nothing = 0;
  std::uint64_t* charged = &nothing;
  std::uint64_t wanted = 0;
  switch (limit) {
    case CU_LIMIT_MALLOC_HEAP_SIZE: charged = &heap_, wanted = beyond(value, heap_at_first); break;
    case CU_LIMIT_PRINTF_FIFO_SIZE: charged = &prints_, wanted = beyond(value, prints_at_first); break;
    case CU_LIMIT_STACK_SIZE:
      charged = &local_, wanted = local_cost(std::max<std::uint64_t>(value, kernel_local_));
      break;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: charged = &depth_, wanted = beyond(value, depth_at_first, depth_each); break;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
      charged = &launches_, wanted = beyond(value, launches_at_first, launches_each);
      break;
    default: break;
  }
  const std::uint64_t more = wanted > *charged ? wanted - *charged : 0;
  if (more != 0 && !ledger_.charge(device_, more)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = driver_.cuCtxSetLimit(limit, value);
  if (result != CUDA_SUCCESS) {
    ledger_.credit(device_, more);
    return result;
  }
  *charged += more;
  if (limit == CU_LIMIT_STACK_SIZE) stack_limit_ = value;
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
