#pragma once
// Contents of device memory while they lie in the memory of the host.

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "driver_table.h"

namespace fargpu::server {

/// Addresses for evicted memory. The kernel gives the memory when it is written, so that the user has to bound it, and
/// has it back when it wants it once it is given up; as long as it does not, memory that is written again costs
/// nothing.
class EvictedStore {
 public:
  /// Throws SystemError if there are no addresses for so much.
  explicit EvictedStore(std::uint64_t bytes);
  EvictedStore(const EvictedStore&) = delete;
  EvictedStore& operator=(const EvictedStore&) = delete;
  ~EvictedStore();

  std::uint64_t bytes() const { return bytes_; }
  std::byte* memory() const { return memory_; }
  /// What is there is not needed any more.
  void give_up();

 private:
  const std::uint64_t bytes_;
  std::byte* memory_;
};

/// Copies out and back with several threads, each through pinned memory of its own, so that the copies of some go on
/// while others touch the host's memory. Zeros take no memory of the host. The device memory must not be in use
/// meanwhile. Threads: one at a time, without a context of its own.
class EvictedContents {
 public:
  struct Part {
    CUdeviceptr address = 0;
    std::uint64_t bytes = 0;
    CUcontext context = nullptr;  ///< of its device
  };

  /// How large a store they need.
  static std::uint64_t store_bytes(const std::vector<Part>& parts);
  /// The store outlives this, and is large enough.
  EvictedContents(DriverTable& driver, EvictedStore& store, const std::vector<Part>& parts);
  EvictedContents(const EvictedContents&) = delete;
  EvictedContents& operator=(const EvictedContents&) = delete;

  /// Both wait, and leave the thread without a context. After a failure the copy that was to be made is worth nothing.
  /// What was copied out stays in the store, so that the copy back may be tried again.
  CUresult copy_out();
  CUresult copy_back();

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
  using Copy = CUresult (EvictedContents::*)(Copier&, Chunk&);
  CUresult run(Copy copy);
  CUresult take(Copier& copier, Chunk& chunk);
  CUresult give(Copier& copier, Chunk& chunk);

  DriverTable& driver_;
  std::vector<Chunk> chunks_;
  std::size_t largest_ = 0;  // of them, in bytes
  std::atomic<std::uint64_t> host_bytes_{0};
};

}  // namespace fargpu::server
