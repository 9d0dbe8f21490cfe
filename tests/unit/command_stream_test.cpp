// When calls leave: at once, with those that follow, or with the one that waits.

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
  /// Makes one call right behind another until it stays, as it does unless the thread is held up between the two.
  bool one_stays() {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      pause();
      call(Urgency::later);
      CHECK(left() == 1);
      left_behind = 0;
      call(Urgency::later);
      if (left() == 0) return left_behind == 1;
    }
    return false;
  }

  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> ends;
  int left_behind = 0;  // so often the service thread was told
  CommandStream commands;
};

}  // namespace

TEST_CASE("a call after a pause leaves at once, and the service thread need not know") {
  Fixture f;
  for (int i = 0; i < 3; ++i) {
    Fixture::pause();
    f.call(Urgency::later);
    CHECK(f.left() == 1);
  }
  CHECK(f.left_behind == 0);
}

TEST_CASE("a call behind another stays, and leaves with the one that waits") {
  Fixture f;
  REQUIRE(f.one_stays());
  f.call(Urgency::now);
  CHECK(f.left() == 2);
}

// Where two calls came within two microseconds the clock is read for every fourth only.
TEST_CASE("what stayed leaves with one of the first four calls after a pause") {
  Fixture f;
  REQUIRE(f.one_stays());
  Fixture::pause();
  std::size_t calls = 0, left = 0;
  while (left == 0 && calls < 4) {
    f.call(Urgency::later);
    ++calls;
    left = f.left();
  }
  CHECK(left == 1 + calls);
}

TEST_CASE("what stayed leaves with a flush") {
  Fixture f;
  REQUIRE(f.one_stays());
  f.commands.flush();
  CHECK(f.left() == 1);
}

TEST_CASE("what stayed leaves when it is old enough, and not before") {
  Fixture f;
  REQUIRE(f.one_stays());
  CHECK(f.commands.flush_older_than(std::chrono::hours(1)) == CommandStream::Left::young);
  CHECK(f.left() == 0);
  Fixture::pause();
  CHECK(f.commands.flush_older_than(std::chrono::microseconds(50)) == CommandStream::Left::nothing);
  CHECK(f.left() == 1);
  CHECK(f.commands.flush_older_than(std::chrono::microseconds(50)) == CommandStream::Left::nothing);
  CHECK(f.left() == 0);
}
