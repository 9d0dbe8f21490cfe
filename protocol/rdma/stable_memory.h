#pragma once
// Memory of this process that its owner leaves mapped until it says otherwise, such as the pinned memory that the
// client library gives to a program: lines may put straight from it. Where devices must know memory for that, it is
// registered when it is first sent from, and stays so, within a bound, until its owner takes it back. It may be memory
// of a GPU, which devices must know in any case.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "context.h"

namespace fargpu::rdma {

/// Threads: any.
class StableMemory {
  struct Block;

 public:
  using Bytes = std::span<const std::byte>;
  static constexpr std::size_t registered_bytes_usual = std::size_t{4} << 30;

  /// A block that something is sent from.
  class Hold {
   public:
    Hold(Hold&& other) noexcept
        : memory_(other.memory_), block_(std::exchange(other.block_, nullptr)), known_(other.known_) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(memory_, other.memory_);
      std::swap(block_, other.block_);
      std::swap(known_, other.known_);
      return *this;
    }
    ~Hold();
    /// What the devices know it as; null where they need not.
    Memory* known() const { return known_; }

   private:
    friend class StableMemory;
    Hold(StableMemory& memory, Block& block, Memory* known) : memory_(&memory), block_(&block), known_(known) {}
    StableMemory* memory_;
    Block* block_;
    Memory* known_;
  };

  explicit StableMemory(std::size_t registered_bytes_max = registered_bytes_usual)
      : registered_bytes_max_(registered_bytes_max) {}
  ~StableMemory();
  static StableMemory& of_process();

  void add(const void* begin, std::size_t bytes, MemoryKind kind = MemoryKind::host);
  /// Waits until nothing is sent from it; then no device knows it any more. Nothing happens if it was not added.
  void remove(const void* begin) noexcept;
  /// None if the bytes are not all in one block, or cannot be put straight from there by these devices.
  std::optional<Hold> hold(Bytes bytes, const std::shared_ptr<OpenedDevices>& devices);

  std::size_t registered_bytes() const;

 private:
  struct Block {
    std::size_t bytes = 0;
    MemoryKind kind = MemoryKind::host;
    unsigned holds = 0;
    bool leaving = false;
    std::uint64_t used = 0;                                   // when, among all
    std::map<std::shared_ptr<OpenedDevices>, Memory*> known;  // null: not to be registered
  };

  // Under the mutex.
  Memory* know(const std::byte* begin, Block& block, const std::shared_ptr<OpenedDevices>& devices);
  bool make_room(std::size_t bytes);
  void forget(Block& block) noexcept;

  const std::size_t registered_bytes_max_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::map<const std::byte*, Block> blocks_;
  std::size_t registered_bytes_ = 0;
  std::uint64_t uses_ = 0;
};

}  // namespace fargpu::rdma
