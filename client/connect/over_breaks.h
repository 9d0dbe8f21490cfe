#pragma once
// Asking a host again when the line to it breaks before there is an answer.

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "client/base/log.h"
#include "dial_error.h"

namespace fargpu::client {

/// Calls `ask` until it does not throw a DialError because the line broke; for ten seconds from the first break, or
/// three times if the host has said nothing at all, as another service may have that port. The host forgets what it had
/// begun for a connection, but for a worker that starts: the next attempt may find that ready. It takes a few seconds
/// to forget a session, so after a break it may have no room.
template <class Ask>
auto over_breaks(Ask&& ask) {
  using Clock = std::chrono::steady_clock;
  constexpr int hellos_most = 3;
  constexpr std::chrono::milliseconds time_most(10'000), pause_most(200);
  std::optional<Clock::time_point> until;
  std::chrono::milliseconds pause(20);  // the host has to hear of the end before
  for (int hellos = 0;;) {
    try {
      return ask();
    } catch (const DialError& error) {
      hellos += error.line == DialError::Line::broke_at_hello;
      const bool full = until && error.reason == wire::Failure::Reason::NO_CAPACITY;
      if ((error.line == DialError::Line::whole && !full) || hellos == hellos_most) throw;
      if (!until) until = Clock::now() + time_most;
      else if (Clock::now() > *until) throw;
      log::info("no answer yet: {}; it is tried again", error.what());
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, pause_most);
  }
}

}  // namespace fargpu::client
