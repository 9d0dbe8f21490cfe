#pragma once
// The session of this process, for threads that are not its own.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "protocol/channel.h"
#include "server/scheduler/turn.h"

namespace fargpu::server {

class Session;
struct LaneWish;

/// What the session is told before it runs is kept for it; of turns the last one counts. Threads: any.
class RunningSession {
 public:
  /// It runs from now on; null: it is over.
  void set(Session* session);

  void hear_turn(const scheduler::Turn& turn);
  void stop(const std::string& why);
  void notify(const std::string& line);
  /// A connection that asks to be a bulk lane.
  void take_lane(std::unique_ptr<Channel> lane, const LaneWish& wish);
  /// Session::rounds(); nothing while no session runs.
  std::optional<std::uint64_t> rounds() const;

 private:
  mutable std::mutex mutex_;
  Session* session_ = nullptr;
  std::optional<scheduler::Turn> turn_;
  std::string stop_why_;
};

}  // namespace fargpu::server
