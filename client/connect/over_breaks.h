#pragma once
// Asking a host again when the line to it breaks before there is an answer.

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "client/base/log.h"
#include "dial_error.h"

namespace fargpu::client {

/// Calls `ask` until it does not throw a DialError because the line broke, or the host's fargpud ended; for ten seconds
/// from the first time, or three times if the host has said nothing at all, as another service may have that port, or
/// ends again and again. The host forgets what it had begun for a connection, but for a worker that starts: the next
/// attempt may find that ready. It takes a few seconds to forget a session, so after a break it may have no room. The
/// host's next fargpud may take a few seconds to listen. Where the host may have the client wait for so long, all of
/// this begins anew with each attempt that has waited. `was_there`: a fargpud has spoken to this job before, so that
/// nobody listens for a moment only.
template <class Ask>
auto over_breaks(Ask&& ask, std::chrono::milliseconds waits = {}, bool was_there = false) {
  using Clock = std::chrono::steady_clock;
  constexpr int hellos_most = 3, ends_most = 3;
  constexpr std::chrono::milliseconds time_most(10'000), pause_most(200), queued_least(1'000);
  const auto begin = Clock::now();
  std::optional<Clock::time_point> until;
  std::optional<DialError> first;
  std::chrono::milliseconds pause(20);  // the host has to hear of the end before
  for (int hellos = 0, ends = 0;;) {
    const auto asked = Clock::now();
    try {
      return ask();
    } catch (const DialError& error) {
      using Line = DialError::Line;
      const bool broke_later = error.line == Line::broke || error.line == Line::ended;
      if (broke_later && Clock::now() - asked >= queued_least && Clock::now() - begin < waits) {
        hellos = ends = 0;
        first.reset();
      }
      hellos += error.line == Line::broke_at_hello;
      ends += error.line == Line::ended;
      const bool soon = ((first || was_there) && error.nobody_listens) ||
                        (first && error.reason == wire::Failure::Reason::NO_CAPACITY);
      if ((error.line == Line::whole && !soon) || hellos == hellos_most || ends == ends_most) throw;
      if (!first) {
        first = error;
        until = Clock::now() + time_most;
      } else if (Clock::now() > *until) {
        if (error.nobody_listens) throw *first;
        throw;
      }
      log::info("no answer yet: {}; it is tried again", error.what());
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, pause_most);
  }
}

}  // namespace fargpu::client
