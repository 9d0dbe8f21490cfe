#pragma once
// What the sessions of a lease may move over the network, all together.

#include <chrono>
#include <cstddef>
#include <memory>

#include "protocol/channel.h"
#include "server/memory_account.h"

namespace fargpu::server {

/// A bucket that all workers of the lease take from, in memory that they share: the time up to which what was moved is paid for. It moves on
/// with every byte, at the lease's rate, and bytes may go while it lies behind the clock. Any thread.
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

 private:
  std::uint64_t rate() const { return place_.account->bandwidth(); }
  AccountPlace place_;
};

/// The channel, through which no more goes than the bandwidth lets. Messages of a few kilobytes go out at once and are paid for afterwards, so
/// that answers do not wait behind contents of memory. `first`: comes before other channels of the lease, within bounds.
std::unique_ptr<Channel> pace(std::unique_ptr<Channel> channel, std::shared_ptr<Bandwidth> bandwidth, bool first);

}  // namespace fargpu::server
