#pragma once
// Contents of device memory while they lie in the memory of the host, or on its disk.

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "driver_table.h"
#include "server/exchange.h"

namespace fargpu::server {

/// Where contents lie meanwhile, by their offsets. Threads: several at once, each at offsets of its own.
class EvictedStore {
 public:
  EvictedStore() = default;
  EvictedStore(const EvictedStore&) = delete;
  EvictedStore& operator=(const EvictedStore&) = delete;
  virtual ~EvictedStore() = default;
  /// Both throw SystemError.
  virtual void write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void read(std::uint64_t offset, std::span<std::byte> bytes) = 0;
};

/// The kernel gives the memory when it is written, so that the user has to bound it, and has it back when it wants it
/// once it is given up; as long as it does not, memory that is written again costs nothing.
class EvictedInMemory : public EvictedStore {
 public:
  /// Throws SystemError if there are no addresses for so much.
  explicit EvictedInMemory(std::uint64_t bytes);
  ~EvictedInMemory() override;

  std::uint64_t bytes() const { return bytes_; }
  void write(std::uint64_t offset, std::span<const std::byte> bytes) override;
  void read(std::uint64_t offset, std::span<std::byte> bytes) override;
  /// What is there is not needed any more. `offset` is a multiple of a huge page.
  void give_up(std::uint64_t offset, std::uint64_t bytes);

 private:
  const std::uint64_t bytes_;
  std::byte* memory_;
};

/// A file that nobody else has, and that goes with this. The kernel keeps of it in memory what it has room for.
class EvictedOnDisk : public EvictedStore {
 public:
  explicit EvictedOnDisk(Descriptor file) : file_(std::move(file)) {}
  void write(std::uint64_t offset, std::span<const std::byte> bytes) override;
  void read(std::uint64_t offset, std::span<std::byte> bytes) override;
  /// What is there is not needed any more: the disk has its room back, where its file system can do that.
  void give_up(std::uint64_t offset, std::uint64_t bytes);

 private:
  const Descriptor file_;
};

/// Copies out and back with several threads, each through pinned memory of its own, so that the copies of some go on
/// while others touch the store. Zeros take nothing of it. The device memory must not be in use
/// meanwhile. Threads: one at a time, without a context of its own.
class EvictedContents {
 public:
  struct Part {
    CUdeviceptr address = 0;
    std::uint64_t bytes = 0;
    CUcontext context = nullptr;  ///< of its device
  };

  static constexpr std::size_t chunk_bytes = 8u << 20;  ///< that is copied at once: from a part's begin on

  /// How large a store they need.
  static std::uint64_t store_bytes(const std::vector<Part>& parts);
  /// They lie from `offset` in the store, which outlives this and is large enough.
  EvictedContents(DriverTable& driver, EvictedStore& store, std::uint64_t offset, const std::vector<Part>& parts);
  EvictedContents(const EvictedContents&) = delete;
  EvictedContents& operator=(const EvictedContents&) = delete;

  /// Both wait, and leave the thread without a context. After a failure the copy that was to be made is worth nothing.
  /// What was copied out stays in the store, so that the copy back may be tried again.
  CUresult copy_out();
  CUresult copy_back();

  /// The part to which belongs what begins at an address; nothing: it belongs to none, and is not needed any more.
  using PartOf = std::function<std::optional<std::size_t>(CUdeviceptr)>;
  /// After copy_out(). Nothing is left here.
  std::vector<std::unique_ptr<EvictedContents>> divide(std::size_t parts, const PartOf& part_of);
  /// The part of the store in which they lie: its offset and its bytes.
  std::pair<std::uint64_t, std::uint64_t> range() const;

  /// Of the store, after copy_out().
  std::uint64_t kept_bytes() const { return kept_bytes_; }
  /// What the store said if a copy failed because of it.
  const std::string& store_error() const { return store_error_; }

 private:
  struct Chunk {
    CUdeviceptr address = 0;
    CUcontext context = nullptr;
    std::size_t bytes = 0;
    std::uint64_t kept = 0;  // offset in the store
    bool zeros = false;
  };
  EvictedContents(DriverTable& driver, EvictedStore& store) : driver_(driver), store_(store) {}
  class Copier;
  using Copy = CUresult (EvictedContents::*)(Copier&, Chunk&);
  CUresult run(Copy copy);
  CUresult take(Copier& copier, Chunk& chunk);
  CUresult give(Copier& copier, Chunk& chunk);

  DriverTable& driver_;
  EvictedStore& store_;
  std::vector<Chunk> chunks_;
  std::size_t largest_ = 0;  // of them, in bytes
  std::atomic<std::uint64_t> kept_bytes_{0};
  std::mutex mutex_;  // over the error
  std::string store_error_;
};

}  // namespace fargpu::server
