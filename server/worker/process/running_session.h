#pragma once
// The session of this process, for threads that are not its own.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "protocol/channel.h"
#include "server/scheduler/turn.h"

namespace fargpu::server {

class Session;
struct EvictOrder;
struct LaneWish;
struct PeerWish;

/// What the session is told before it runs is kept for it; of turns and notices the last one counts. Threads: any.
class RunningSession {
 public:
  /// It runs from now on; null: it is over.
  void set(Session* session);

  void hear_turn(const scheduler::Turn& turn);
  void hear_evict(EvictOrder order);
  void hear_room(std::uint64_t request, bool made);
  void hear_of_new_broker();
  void stop(const std::string& why);
  void notify(const std::string& line);
  /// A connection that asks to be a bulk lane.
  void take_lane(std::unique_ptr<Channel> lane, const LaneWish& wish);
  /// A connection that asks to be one of a link with another host's worker; nothing if it asks for something else.
  std::optional<PeerWish> read_peer(std::span<const std::byte> lane_message) const;
  void take_peer(std::unique_ptr<Channel> channel, const PeerWish& wish);
  /// Session::rounds(); nothing while no session runs.
  std::optional<std::uint64_t> rounds() const;

 private:
  mutable std::mutex mutex_;
  Session* session_ = nullptr;
  std::optional<scheduler::Turn> turn_;
  std::string notice_, stop_why_;
};

}  // namespace fargpu::server
