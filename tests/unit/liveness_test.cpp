// Heartbeats, and a host that has fallen silent.

#include "client/call/liveness.h"

#include <catch2/catch.hpp>
#include <future>

#include "client/session/process.h"
#include "client/objects/thread.h"
#include "lone_session.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;
using namespace std::chrono_literals;

namespace {

struct Watched {
  explicit Watched(std::chrono::milliseconds silence)
      : liveness(*new Liveness(silence, {.heard = [this] { return heard.load(); },
                                         .beat = [this] { return ++beats > 0; },
                                         .silent =
                                             [this] {
                                               silent.set_value();
                                               return false;
                                             }})) {
    liveness.start();
  }
  std::atomic<std::uint32_t> heard{0};
  std::atomic<int> beats{0};
  std::promise<void> silent;
  Liveness& liveness;  // its thread is detached, as is all that a session has
};

// Kept for good: a thread may still be looking at it.
Watched& watch(std::chrono::milliseconds silence) {
  static auto& all = *new std::vector<std::unique_ptr<Watched>>;
  return *all.emplace_back(std::make_unique<Watched>(silence));
}

}  // namespace

TEST_CASE("a host that says nothing gets heartbeats, and is given up") {
  auto& watched = watch(120ms);
  CHECK(watched.silent.get_future().wait_for(10s) == std::future_status::ready);
  CHECK(watched.beats > 0);
}

TEST_CASE("a host that says something is not given up") {
  auto& watched = watch(400ms);
  const auto end = Liveness::Clock::now() + 1s;
  auto silent = watched.silent.get_future();
  while (Liveness::Clock::now() < end) {
    ++watched.heard;
    REQUIRE(silent.wait_for(20ms) == std::future_status::timeout);
  }
  watched.liveness.end();
}

TEST_CASE("a process that was not stopped has no excuse") {
  auto& watched = watch(10s);
  CHECK(watched.liveness.absence() == 0s);
  watched.liveness.end();
}

TEST_CASE("silence is noticed while the thread that reads is stuck") {
  LoneSession lone({}, 200ms);
  std::promise<void> stuck, go_on;
  lone.session().fences.after_all(Thread::current(), [&] {
    stuck.set_value();
    go_on.get_future().wait();
  });
  lone.push([](wire::Control::Builder control) { control.initPassed().setFence(1); });
  stuck.get_future().wait();
  for (const auto end = Liveness::Clock::now() + 10s; life() == Life::ready && Liveness::Clock::now() < end;)
    std::this_thread::sleep_for(1ms);
  CHECK(life() == Life::lost);
  go_on.set_value();
}
