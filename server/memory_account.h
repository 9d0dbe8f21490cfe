#pragma once
// Device memory that the sessions of one tenant hold, counted where the broker and the tenant's workers can all see it.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "protocol/limits.h"

namespace fargpu::server {

/// One session's counters. The session's worker writes `charged`, the broker everything else.
struct MemorySlot {
  std::atomic<std::uint64_t> lease;     ///< 0: nobody's
  std::atomic<std::uint64_t> unstated;  ///< 1: the lease keeps no memory for itself, so that the tenant's quota bounds what it holds
  std::atomic<std::uint64_t> charged[limits::devices_max];  ///< by the lease's devices, in their order
  std::atomic<std::uint64_t> taken[limits::devices_max];    ///< what the driver was seen to have taken besides, for itself
};

/// Shared memory with one slot a session. There is no lock and no common total: each counter has one writer, and what counts are sums.
/// So a process that dies in the middle leaves nothing wrong behind, and one that writes nonsense harms its own tenant alone.
class MemoryAccount {
 public:
  static constexpr std::uint64_t no_limit = ~std::uint64_t{0};

  /// New memory for so many sessions. Throws SystemError.
  explicit MemoryAccount(std::size_t slots);
  /// The memory behind a descriptor of another one; takes the descriptor. Throws SystemError.
  static MemoryAccount open(int descriptor);
  MemoryAccount(MemoryAccount&& other) noexcept;
  MemoryAccount& operator=(MemoryAccount&&) = delete;
  ~MemoryAccount();

  int descriptor() const { return descriptor_; }
  std::size_t slots() const { return slots_; }
  MemorySlot& slot(std::size_t number) { return first_slot()[number]; }

  // --- the broker's ---------------------------------------------------------------------------------------------------------
  /// A slot for a session; `slots()` if none is free.
  std::size_t begin(std::uint64_t lease, bool unstated);
  /// The session is gone, and all that it held.
  void end(std::size_t number);
  /// What leases that keep no memory for themselves may hold together, on all devices.
  void set_unreserved(std::uint64_t bytes) { header().unreserved = bytes; }

  // --- sums -----------------------------------------------------------------------------------------------------------------
  std::uint64_t unreserved() { return header().unreserved; }
  /// Held by a lease on its device of this number.
  std::uint64_t held(std::uint64_t lease, int device);
  /// Held by all leases that keep no memory for themselves.
  std::uint64_t held_unstated();

 private:
  struct Header {
    std::atomic<std::uint64_t> unreserved;
    std::atomic<std::uint64_t> used;  ///< slots up to here may be somebody's
  };
  MemoryAccount(int descriptor, std::size_t slots, void* memory) : descriptor_(descriptor), slots_(slots), memory_(memory) {}
  static std::size_t bytes_of(std::size_t slots);
  static void* map(int descriptor, std::size_t bytes);
  Header& header() { return *static_cast<Header*>(memory_); }
  MemorySlot* first_slot() { return reinterpret_cast<MemorySlot*>(static_cast<std::byte*>(memory_) + sizeof(Header)); }
  std::size_t used();

  int descriptor_;
  std::size_t slots_;
  void* memory_;
};

}  // namespace fargpu::server
