#pragma once
// Contents of device memory while they lie in the memory of the host.

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "driver_table.h"

namespace fargpu::server {

/// Copies out and back with several threads, each through pinned memory of its own, so that the copies of some go on
/// while others touch the host's memory. Zeros take no memory of the host. The kernel gives the memory when it is
/// written, so that the caller has to bound it. The device memory must not be in use meanwhile. Threads: one at a time,
/// without a context of its own.
class EvictedContents {
 public:
  struct Part {
    CUdeviceptr address = 0;
    std::uint64_t bytes = 0;
    CUcontext context = nullptr;  ///< of its device
  };

  /// Throws SystemError if there are no addresses for so much.
  EvictedContents(DriverTable& driver, std::vector<Part> parts);
  EvictedContents(const EvictedContents&) = delete;
  EvictedContents& operator=(const EvictedContents&) = delete;
  ~EvictedContents();

  /// Both wait, and leave the thread without a context. After a failure the copy that was to be made is worth nothing.
  CUresult copy_out();
  CUresult copy_back();

  std::uint64_t bytes() const { return bytes_; }
  /// Of the host's memory, after copy_out().
  std::uint64_t host_bytes() const { return host_bytes_; }

 private:
  struct Chunk {
    CUdeviceptr address = 0;
    CUcontext context = nullptr;
    std::size_t bytes = 0;
    std::byte* kept = nullptr;
    bool zeros = false;
  };
  class Copier;
  CUresult run(CUresult (EvictedContents::*copy)(Copier&, Chunk&));
  CUresult take(Copier& copier, Chunk& chunk);
  CUresult give(Copier& copier, Chunk& chunk);

  DriverTable& driver_;
  std::uint64_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::vector<Chunk> chunks_;
  std::atomic<std::uint64_t> host_bytes_{0};
};

}  // namespace fargpu::server
