#pragma once
// What the sessions of a lease may move over the network, all together.

#include <chrono>
#include <cstddef>
#include <utility>

#include "tenant_account.h"

namespace fargpu::server {

/// A bucket that all workers of the lease take from, in memory that they share: the time up to which what was moved is
/// paid for. It moves on with every byte, at the lease's rate, and bytes may go while it lies behind the clock. Any
/// thread.
class Bandwidth {
 public:
  using Clock = std::chrono::steady_clock;  // of the whole machine
  using Time = std::chrono::nanoseconds;
  explicit Bandwidth(AccountPlace place) : place_(std::move(place)) {}

  /// How many bytes, of those wanted, may be moved now. They are paid for. `ahead`: by so much more time than others.
  std::size_t take(std::size_t wanted, Time ahead = Time(0), Time now = Clock::now().time_since_epoch());
  /// Of these bytes, whatever is left: they are moved in any case, and those that come later wait for them.
  void take_all(std::size_t bytes, Time now = Clock::now().time_since_epoch());
  /// What was taken and not moved.
  void give_back(std::size_t bytes);
  void moved(std::size_t bytes) { place_.account->slot(place_.slot).moved.fetch_add(bytes, std::memory_order_relaxed); }
  /// How long until it is worth asking again; nothing if it is now.
  Time wait(Time ahead = Time(0), Time now = Clock::now().time_since_epoch()) const;

  /// What may be saved up while nothing is moved.
  static constexpr Time burst = std::chrono::milliseconds(50);
  /// So many bytes are a message rather than contents of memory: they are moved at once.
  static constexpr std::size_t message_bytes = 4096;

 private:
  std::uint64_t rate() const { return place_.account->bandwidth(); }
  AccountPlace place_;
};

}  // namespace fargpu::server
