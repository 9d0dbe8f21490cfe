#pragma once
// Memory of a device that the driver takes by itself for what a session asks of it, where that can be known before.

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "device_memory.h"
#include "driver_table.h"

namespace fargpu::server {

/// A context's heap of `malloc` in kernels, its buffer of `printf`, what kernels that launch kernels need, and local
/// memory, which lies ready for as many threads as the device holds at once and never shrinks to what smaller kernels
/// need (CUDA Driver API, cuCtxSetLimit and CU_CTX_LMEM_RESIZE_TO_MAX). What is more than a new context has is charged
/// before the driver is asked, and stays charged while the context lives: no documentation says that a driver gives
/// back what a limit was lowered by. All else is charged when the broker sees it. Used by the executor only, with the
/// context current.
class DriverMemory {
 public:
  /// `number`: of this one in its session, from 1.
  DriverMemory(DriverTable& driver, Ledger& ledger, int device, CUdevice driver_device, std::uint64_t number);
  DriverMemory(const DriverMemory&) = delete;
  DriverMemory& operator=(const DriverMemory&) = delete;
  ~DriverMemory();
  std::uint64_t number() const { return number_; }

  /// cuCtxSetLimit; OUT_OF_MEMORY, and all as it was, if the session may not hold what comes of it.
  CUresult set_limit(CUlimit limit, std::size_t value);

  /// Before the context is given a kernel each of whose threads uses so much local memory.
  CUresult hold_local(std::uint32_t bytes) { return bytes <= kernel_local_ ? CUDA_SUCCESS : grow_local(bytes); }

 private:
  std::uint64_t beyond(std::uint64_t bytes, std::uint64_t had, std::uint64_t each = 1) const;
  std::uint64_t local_cost(std::uint64_t bytes) const;
  CUresult grow_local(std::uint32_t bytes);

  DriverTable& driver_;
  Ledger& ledger_;
  const int device_;
  const std::uint64_t number_;
  std::uint64_t threads_ = 0;  ///< that the device holds at once
  std::uint64_t device_bytes_ = 0;
  std::uint64_t heap_ = 0, prints_ = 0, local_ = 0, depth_ = 0, launches_ = 0;  ///< charged
  std::uint64_t stack_limit_ = 0;                                               ///< of a thread, as set; 0 before
  std::uint32_t kernel_local_;  ///< the most that a kernel used of a thread, and what every context has
};

}  // namespace fargpu::server
