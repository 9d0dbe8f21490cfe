// When calls leave: at once, with what follows, or with the one that waits.

#include "client/command_stream.h"

#include <catch2/catch.hpp>
#include <thread>

#include "frames.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;

namespace {

using Urgency = CommandStream::Urgency;

struct Fixture {
  Fixture()
      : ends(make_memory_channel()),
        commands(
            *ends.second, [] { return 0u; }, [this] { ++left_behind; }, Compression::never) {}

  void call(Urgency urgency) { commands.append(numbered(0), {}, {}, urgency); }
  /// How many calls have left since this was asked last.
  std::size_t left() {
    Bytes bytes(64 * sizeof(FrameHeader));
    return ends.first->receive_some(bytes) / sizeof(FrameHeader);
  }
  static void pause() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }
  /// Launches and synchronizes until a launch stays for its synchronize, as it comes to when the thread is not held up between the two.
  bool stays_in_time() {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      pause();
      call(Urgency::later);
      const bool stayed = left() == 0;
      call(Urgency::now);
      if (stayed) return left() == 2;
      left();
    }
    return false;
  }

  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> ends;
  int left_behind = 0;
  CommandStream commands;
};

}  // namespace

TEST_CASE("a call after a pause leaves at once") {
  Fixture f;
  for (int i = 0; i < 3; ++i) {
    Fixture::pause();
    f.call(Urgency::later);
    CHECK(f.left() == 1);
  }
  CHECK(f.left_behind == 0);
}

TEST_CASE("a call that is waited for right away leaves with the wait, once that was seen") {
  Fixture f;
  f.call(Urgency::later);
  CHECK(f.left() == 1);
  REQUIRE(f.stays_in_time());
  CHECK(f.left_behind > 0);  // the service thread was told
}

TEST_CASE("what stayed in vain leaves with the next call, and the one after the next pause at once") {
  Fixture f;
  REQUIRE(f.stays_in_time());
  Fixture::pause();
  f.call(Urgency::later);
  const std::size_t stayed = f.left() == 0;  // or the thread was held up between the last two calls
  Fixture::pause();
  f.call(Urgency::later);
  CHECK(f.left() == 1 + stayed);
  Fixture::pause();
  f.call(Urgency::later);
  CHECK(f.left() == 1);
}

TEST_CASE("what stayed leaves when it is old enough") {
  Fixture f;
  REQUIRE(f.stays_in_time());
  Fixture::pause();
  f.call(Urgency::later);
  const std::size_t stayed = f.left() == 0;
  Fixture::pause();
  CHECK(f.commands.flush_older_than(std::chrono::microseconds(50)) == CommandStream::Left::nothing);
  CHECK(f.left() == stayed);
}

TEST_CASE("a wait long after the call does not keep the next one back") {
  Fixture f;
  REQUIRE(f.stays_in_time());
  for (int i = 0; i < 2; ++i) {
    Fixture::pause();
    f.call(Urgency::later);
    if (i > 0) CHECK(f.left() == 1);
    Fixture::pause();
    f.call(Urgency::now);
    f.left();
  }
}

TEST_CASE("after milliseconds a call leaves at once whatever followed the last") {
  Fixture f;
  REQUIRE(f.stays_in_time());
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  f.call(Urgency::later);
  CHECK(f.left() == 1);
}
