#pragma once
// Memory of a GPU that a card can reach, through which the contents of memory pass between the two without the host's
// memory. docs/internals/rdma.md

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "driver_table.h"
#include "protocol/device_bytes.h"

namespace fargpu::server {

/// Makes such memory on one device, and copies what neither a card nor a stream of the program copies. It belongs to no
/// context, so it outlives those of the program. Threads: any. Owned by shared pointers, which its blocks hold.
class DirectMemory : public std::enable_shared_from_this<DirectMemory> {
 public:
  /// Asks the driver whether the device can. Throws DriverError with what is missing.
  DirectMemory(DriverTable& driver, CUdevice device);
  ~DirectMemory();
  DirectMemory(const DirectMemory&) = delete;
  DirectMemory& operator=(const DirectMemory&) = delete;

  /// Memory of its own, known to DeviceBytes, and to StableMemory if it is `sent` from. Throws DriverError.
  std::shared_ptr<std::byte> make(std::size_t bytes, bool sent);

  /// The device's primary context is about to be reset, and what was made in it goes. Nothing is copied while the
  /// caller has the lock.
  [[nodiscard]] std::unique_lock<std::mutex> leave_context();

 private:
  struct Block;
  bool copy(DeviceBytes::Way way, void* to, const void* from, std::size_t bytes);
  CUresult enter();
  template <class Work>
  bool as_in_context(Work&& work);

  DriverTable& driver_;
  const CUdevice device_;
  bool flushes_ = false;  // what a card has written has to be made visible to the GPU
  std::mutex mutex_;
  CUcontext context_ = nullptr;  // the device's primary one
  CUstream stream_ = nullptr;    // of it
};

}  // namespace fargpu::server
