#include "service.h"

#include <fmt/format.h>
#include <kj/exception.h>
#include <sys/prctl.h>

#include <thread>
#include <utility>

#include "client/base/threads.h"
#include "client/base/uncancelled.h"
#include "protocol/limits.h"

namespace fargpu::client {

Service::Service(Channel& channel, Calls& calls, std::string host, std::chrono::milliseconds silence)
    : channel_(channel),
      calls_(calls),
      host_(std::move(host)),
      silence_(silence),
      liveness_(silence, {.heard = [this] { return calls_.receiver.confirmed(); },
                          .beat = [this] { return beat(); },
                          .silent = [this] { return lose_silent(); },
                          .paused = [this] { return channel_.resuming(); }}) {}

void Service::start() {
  start_thread("fargpu-service", [this] { serve(); });
  liveness_.start();
}

void Service::end() {
  ended_ = true;
  waker_.signal();
  attending_waker_.signal();
  liveness_.end();
}

void Service::wake() {
  if (!asleep_.load(std::memory_order_seq_cst)) return;
  const Uncancelled uncancelled;
  waker_.signal();
}

// Sends what has gathered, and reads when nobody else does or attends to it. While the program is busy it looks every
// 50 us; after a millisecond of quiet it sleeps until something happens.
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
      const bool received = !attended_.load(std::memory_order_relaxed) && calls_.receiver.serve();
      const auto now = Clock::now();
      if (left == CommandStream::Left::young || received) busy_until = now + quiet;
      if (now < busy_until) {
        std::this_thread::sleep_for(look);
        continue;
      }
      asleep_.store(true, std::memory_order_seq_cst);
      if (const auto still = calls_.commands.flush_some(CommandStream::Which::overdue);
          still != CommandStream::Left::young)
        channel_.wait(
            {.readable = !attended_.load(std::memory_order_seq_cst), .writable = still == CommandStream::Left::stuck},
            sleep_max, &waker_);
      asleep_.store(false, std::memory_order_relaxed);
      busy_until = Clock::now() + quiet;
    }
  } catch (const kj::Exception& error) {
    lose_for(calls_.events, "malformed message: ", error.getDescription().cStr());
  } catch (const std::exception& error) {
    lose_for(calls_.events, error.what());
  }
}

// A thread that stops attending wakes the service thread, if that sleeps: from then on it reads again.
bool Service::attend(const std::function<bool()>& ready, const std::function<bool()>& expected) {
  using Clock = std::chrono::steady_clock;
  constexpr auto patience = std::chrono::milliseconds(100);  // programs ask for the next function soon
  constexpr auto others_pause = std::chrono::milliseconds(1);
  auto expected_at = Clock::now();
  bool worth = true;
  const auto over = [&] {
    if (ready()) return true;
    const auto now = Clock::now();
    if (expected()) expected_at = now;
    worth = now - expected_at < patience && !ended_.load(std::memory_order_relaxed);
    return !worth;
  };
  try {
    while (!over()) {
      attended_.store(true, std::memory_order_seq_cst);
      const Receiver::Attended end = calls_.receiver.attend(over, attending_waker_);
      attended_.store(false, std::memory_order_seq_cst);
      wake();
      if (end == Receiver::Attended::over) return ready();
      // Threads that read for themselves hand over what comes. Looking for when they are done would wake this thread
      // for each answer.
      if (end == Receiver::Attended::others) channel_.wait({}, others_pause, &attending_waker_);
    }
    return worth;
  } catch (const kj::Exception& error) {
    attended_ = false;
    lose_for(calls_.events, "malformed message: ", error.getDescription().cStr());
  } catch (const std::exception& error) {
    attended_ = false;
    lose_for(calls_.events, error.what());
  }
  return ready();
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
  try {
    return fmt::format(
        "; this process was stopped for {} s, and a host ends the session of a client that is silent for {} s",
        absence.count(), silence_.count() / 1000);
  } catch (const std::exception&) {  // the session is lost all the same
    return {};
  }
}

// Whether the watch goes on: on a new connection.
bool Service::lose_silent() {
  try {
    if (channel_.suspect(fmt::format("it has not answered for {} s", silence_.count() / 1000))) return true;
    calls_.events.lose(fmt::format("{} has not answered for {} s", host_, silence_.count() / 1000));
  } catch (const std::exception& error) {
    lose_for(calls_.events, error.what());
  }
  return false;
}

}  // namespace fargpu::client
