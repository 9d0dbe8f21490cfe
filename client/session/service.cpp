#include "service.h"

#include <fmt/format.h>
#include <kj/exception.h>
#include <sys/prctl.h>

#include <thread>
#include <utility>

#include "client/base/threads.h"
#include "protocol/limits.h"

namespace fargpu::client {

Service::Service(Channel& channel, Calls& calls, std::string host, std::chrono::milliseconds silence)
    : channel_(channel),
      calls_(calls),
      host_(std::move(host)),
      silence_(silence),
      liveness_(silence, {.heard = [this] { return calls_.receiver.confirmed(); },
                          .beat = [this] { return beat(); },
                          .silent = [this] { lose_silent(); }}) {}

void Service::start() {
  start_thread("fargpu-service", [this] { serve(); });
  liveness_.start();
}

void Service::end() {
  ended_ = true;
  waker_.signal();
  liveness_.end();
}

void Service::wake() {
  if (asleep_.load(std::memory_order_seq_cst)) waker_.signal();
}

// Sends what has gathered, and reads when nobody else does. While the program is busy it looks every 50 us; after a millisecond of
// quiet it sleeps until something happens.
void Service::serve() {
  using Clock = std::chrono::steady_clock;
  constexpr auto look = std::chrono::microseconds(50);
  constexpr auto quiet = std::chrono::milliseconds(1);
  const auto sleep_max = silence_ / limits::heartbeats_per_silence;
  ::prctl(PR_SET_TIMERSLACK, 1000);
  auto busy_until = Clock::now() + quiet;
  try {
    while (!ended_.load(std::memory_order_relaxed)) {
      const CommandStream::Left left = calls_.commands.flush_some(CommandStream::Which::overdue);
      const bool received = calls_.receiver.serve();
      const auto now = Clock::now();
      if (left == CommandStream::Left::young || received) busy_until = now + quiet;
      if (now < busy_until) {
        std::this_thread::sleep_for(look);
        continue;
      }
      asleep_.store(true, std::memory_order_seq_cst);
      if (const auto still = calls_.commands.flush_some(CommandStream::Which::overdue); still != CommandStream::Left::young)
        channel_.wait({.readable = true, .writable = still == CommandStream::Left::stuck}, sleep_max, &waker_);
      asleep_.store(false, std::memory_order_relaxed);
      busy_until = Clock::now() + quiet;
    }
  } catch (const kj::Exception& error) {
    lose_for(calls_.events, "malformed message: ", error.getDescription().cStr());
  } catch (const std::exception& error) {
    lose_for(calls_.events, error.what());
  }
}

bool Service::beat() {
  try {
    if (!calls_.commands.beat()) return false;
    calls_.commands.flush_some(CommandStream::Which::all);
  } catch (const std::exception& error) {
    lose_for(calls_.events, error.what());
  }
  return true;
}

std::string Service::excuse() const {
  const auto absence = liveness_.absence();
  if (absence.count() == 0) return {};
  return fmt::format("; this process was stopped for {} s, and a host ends the session of a client that is silent for {} s",
                     absence.count(), silence_.count() / 1000);
}

void Service::lose_silent() {
  try {
    calls_.events.lose(fmt::format("{} has not answered for {} s", host_, silence_.count() / 1000));
  } catch (const std::exception& error) {
    lose_for(calls_.events, error.what());
  }
}

}  // namespace fargpu::client
