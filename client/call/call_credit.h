#pragma once
// The client's side of the credit for calls.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "protocol/credit.h"

namespace fargpu::client {

/// What calls have taken of it, and what the worker has said to be settled. Threads: any.
class CallCredit {
 public:
  explicit CallCredit(std::uint64_t granted) : granted_(granted) {}

  /// Takes it for a call if there is so much in the share.
  bool take(std::uint64_t bytes, CreditShare share) {
    const std::uint64_t limit = credit_share(granted_, share);
    while (true) {
      // In this order: what is settled has been taken before.
      const std::uint64_t settled = settled_.load(std::memory_order_acquire);
      std::uint64_t taken = taken_.load(std::memory_order_relaxed);
      if (!has_credit(taken - settled, bytes, limit)) return false;
      if (taken_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed)) return true;
    }
  }

  /// The worker says that so many bytes have been settled in all. Throws ProtocolError if that cannot be.
  void settled(std::uint64_t bytes);

  /// Since when calls have found none, without a word of the worker that some is settled: from the first that says so
  /// here.
  std::chrono::steady_clock::time_point none_since(std::chrono::steady_clock::time_point now);

 private:
  const std::uint64_t granted_;
  std::atomic<std::uint64_t> taken_{0};      // since the session began
  std::atomic<std::uint64_t> settled_{0};    // since the session began
  std::atomic<std::int64_t> none_since_{0};  // of the steady clock; 0: since the last word none was missed
};

}  // namespace fargpu::client
