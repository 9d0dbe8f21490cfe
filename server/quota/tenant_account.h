#pragma once
// What the sessions of one tenant hold of the memory of devices and of the host, and what they move over the network,
// counted in memory that the broker shares with the tenant's workers.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "protocol/limits.h"

namespace fargpu::server {

/// One session's counters. The session's worker writes `charged`, `held`, `away`, `host`, `moved` and `alive`, workers
/// of any session `paid`, the broker everything else.
struct AccountSlot {
  std::atomic<std::uint64_t> lease;  ///< 0: nobody's
  /// 1: the lease keeps no memory for itself, so that the tenant's quota bounds what it holds.
  std::atomic<std::uint64_t> unreserved;
  std::atomic<std::uint64_t> charged[limits::devices_max];  ///< by the lease's devices, in their order
  /// Of `charged`, what is not only asked for: raised behind it and lowered before it, so that the sum of what sessions
  /// hold is never above their limit.
  std::atomic<std::uint64_t> held[limits::devices_max];
  /// Of `charged`, what is not on the device: it was evicted to the host's memory.
  std::atomic<std::uint64_t> away[limits::devices_max];
  /// What the driver was seen to have taken besides, for itself.
  std::atomic<std::uint64_t> taken[limits::devices_max];
  /// Memory that the session has of one that has given it up, or ended.
  std::atomic<std::uint64_t> inherited[limits::devices_max];
  std::atomic<std::uint64_t> host;   ///< of the host's memory
  std::atomic<std::uint64_t> moved;  ///< bytes over the network
  std::atomic<std::uint64_t> alive;  ///< goes up each second for as long as the worker's process runs
  std::atomic<std::uint64_t> pace;   ///< the slot whose `paid` is that of the session's lease
  std::atomic<std::int64_t> paid;    ///< whatever session this slot is: see bandwidth.h
};

/// Shared memory with one slot a session. There is no lock and no common total: each counter has one writer, and what
/// counts are sums. So a process that dies in the middle leaves nothing wrong behind, and one that writes nonsense
/// harms its own tenant alone.
class TenantAccount {
 public:
  static constexpr std::uint64_t no_limit = ~std::uint64_t{0};

  /// New memory for so many sessions. Throws SystemError.
  explicit TenantAccount(std::size_t slots);
  /// The memory behind a descriptor of another one; takes the descriptor. Throws SystemError, also for memory that
  /// others can take away from under this process.
  static TenantAccount open(int descriptor);
  TenantAccount(TenantAccount&& other) noexcept;
  TenantAccount& operator=(TenantAccount&&) = delete;
  ~TenantAccount();

  /// Differs where another release has laid out the memory in another way.
  static std::uint32_t layout() { return static_cast<std::uint32_t>(sizeof(Header) << 16 | sizeof(AccountSlot)); }

  int descriptor() const { return descriptor_; }
  std::size_t slots() const { return slots_; }
  AccountSlot& slot(std::size_t number) { return first_slot()[number]; }

  // --- the broker's -------------------------------------------------------------------------------------------------
  /// A slot for a session; `slots()` if none is free.
  std::size_t begin(std::uint64_t lease, bool unreserved);
  /// The session is gone, and all that it held.
  void end(std::size_t number);
  /// A session that an earlier broker began goes on, in its slot and with what it holds; what it had inherited is to be
  /// found out again.
  void take_over(std::size_t number, std::uint64_t lease, bool unreserved);
  bool taken_over(std::size_t number) const { return number < taken_over_.size() && taken_over_[number]; }
  /// No more will be taken over. `all`: no other session goes on, and the slots of others are free. Returns the highest
  /// number of a lease.
  std::uint64_t all_taken_over(bool all);
  /// Whether both are the same account.
  bool same_memory(const TenantAccount& other) const;
  /// What leases that keep no memory for themselves may hold together, on all devices.
  void set_unreserved_max(std::uint64_t bytes) { header().unreserved_max = bytes; }
  /// What the sessions of one lease may hold together of the host's memory.
  void set_host_max(std::uint64_t bytes) { header().host_max = bytes; }
  /// What the sessions of one lease may move over the network together, in a second.
  void set_bandwidth(std::uint64_t bytes) { header().bandwidth = bytes; }

  // --- sums ---------------------------------------------------------------------------------------------------------
  std::uint64_t unreserved_max() { return header().unreserved_max; }
  std::uint64_t host_max() { return header().host_max; }
  std::uint64_t bandwidth() { return header().bandwidth; }
  /// Of the lease that the session of this slot belongs to.
  std::atomic<std::int64_t>& paid(std::size_t number);
  /// Moved over the network by a lease's present sessions.
  std::uint64_t moved(std::uint64_t lease);
  /// Held by a lease on its device of this number.
  std::uint64_t held(std::uint64_t lease, int device);
  /// Held by a lease of the host's memory.
  std::uint64_t held_of_host(std::uint64_t lease);
  /// Held by all leases that keep no memory for themselves.
  std::uint64_t held_unreserved();

 private:
  struct Header {
    std::atomic<std::uint64_t> unreserved_max;
    std::atomic<std::uint64_t> host_max;
    std::atomic<std::uint64_t> bandwidth;
    std::atomic<std::uint64_t> used;  ///< slots up to here may be somebody's
  };
  TenantAccount(int descriptor, std::size_t slots, void* memory)
      : descriptor_(descriptor), slots_(slots), memory_(memory) {}
  static std::size_t bytes_of(std::size_t slots);
  static void* map(int descriptor, std::size_t bytes);
  Header& header() { return *static_cast<Header*>(memory_); }
  AccountSlot* first_slot() {
    return reinterpret_cast<AccountSlot*>(static_cast<std::byte*>(memory_) + sizeof(Header));
  }
  std::size_t used();
  std::size_t pace_of(std::uint64_t lease);

  int descriptor_;
  std::size_t slots_;
  void* memory_;
  std::vector<bool> taken_over_;  // until all are; of the first slots
};

/// Where a session's counters are among those of its tenant.
struct AccountPlace {
  std::shared_ptr<TenantAccount> account;
  std::size_t slot = 0;
};

/// Announces more in a counter, and keeps to that if `fits` says so of what all have announced. Two that do so at once
/// can never both miss the other; where both stand back because of that, they ask again.
template <class Fits>
bool announce(std::atomic<std::uint64_t>& counter, std::uint64_t bytes, std::size_t slot, Fits&& fits) {
  constexpr std::size_t rounds_of_standing_back = 64;
  for (std::size_t round = 0; round < rounds_of_standing_back; ++round) {
    counter += bytes;
    if (fits()) return true;
    counter -= bytes;
    for (std::size_t i = 0; i <= (slot + round) % 7; ++i) std::this_thread::yield();
  }
  return false;
}

}  // namespace fargpu::server
