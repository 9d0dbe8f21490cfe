#pragma once
// The client's side of the credit for calls.

#include <atomic>
#include <cstdint>

#include "protocol/credit.h"

namespace fargpu::client {

/// What calls have taken of it, and what the worker has said to be settled. Threads: any.
class CallCredit {
 public:
  explicit CallCredit(std::uint64_t granted) : granted_(granted), waiting_(waiting_credit(granted)) {}

  /// Takes it for a call if there is so much; leaves some for those that may not wait.
  bool take(std::uint64_t bytes) { return take(bytes, waiting_); }
  /// Takes it from all that there is.
  bool take_unwaited(std::uint64_t bytes) { return take(bytes, granted_); }
  /// The worker says that so many bytes have been settled in all. Throws ProtocolError if that cannot be.
  void settled(std::uint64_t bytes);

 private:
  bool take(std::uint64_t bytes, std::uint64_t limit) {
    while (true) {
      // In this order: what is settled has been taken before.
      const std::uint64_t settled = settled_.load(std::memory_order_acquire);
      std::uint64_t taken = taken_.load(std::memory_order_relaxed);
      if (!has_credit(taken - settled, bytes, limit)) return false;
      if (taken_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed)) return true;
    }
  }

  const std::uint64_t granted_;
  const std::uint64_t waiting_;            // of that, for those that may wait
  std::atomic<std::uint64_t> taken_{0};    // since the session began
  std::atomic<std::uint64_t> settled_{0};  // since the session began
};

}  // namespace fargpu::client
