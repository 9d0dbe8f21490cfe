#pragma once
// Whether the host takes new sessions.

#include <chrono>
#include <optional>
#include <string>

namespace fargpu::server {

/// serving <-> draining by words of an administrator, or by time; either -> stopping, from which there is no way back.
/// Times are given, so that a test can have its own.
class ServiceState {
 public:
  using Time = std::chrono::system_clock::time_point;
  static constexpr auto drain_max = std::chrono::hours(24 * 365);
  enum class State { serving, draining, stopping };

  State at(Time now) const;
  /// Whether new sessions are taken.
  bool serves(Time now) const { return at(now) == State::serving; }
  /// When the state ends by itself; nothing if it does not.
  std::optional<Time> until(Time now) const;

  /// No new sessions, for so long or until `resume`; sessions that run go on. Draining again changes the time. Why not;
  /// empty if done.
  std::string drain(Time now, std::optional<std::chrono::seconds> time);
  /// Why not; empty if done.
  std::string resume(Time now);
  /// No new sessions any more; those that run end at this time.
  void stop(Time end);

  /// What a client is told that is refused because of this; empty while the host serves.
  std::string refusal(Time now) const;

 private:
  State state_ = State::serving;
  std::optional<Time> until_;
};

}  // namespace fargpu::server
