// When calls leave: at once, with those that follow, or with the one that waits.

#include "client/call/command_stream.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <thread>
#include <vector>

#include "tests/wrapped_channel.h"
#include "frames.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;

namespace {

using Urgency = CommandStream::Urgency;

using Clock = CommandStream::Clock;
using std::chrono::microseconds;

void pass(Clock::duration time) {
  const auto begin = Clock::now();
  while (Clock::now() - begin < time) {}
}

/// Takes its time to send, and notes when it did.
class SlowChannel final : public WrappedChannel {
 public:
  using WrappedChannel::WrappedChannel;
  std::size_t send_some(std::span<const Bytes> pieces) override {
    pass(microseconds(5));
    sent.push_back(Clock::now());
    return WrappedChannel::send_some(pieces);
  }
  std::vector<Clock::time_point> sent;
};

struct Fixture {
  Fixture()
      : ends(make_memory_channel()),
        slow(std::move(ends.second)),
        commands(
            slow, [] { return 0u; }, [this] { ++left_behind; }, Compression::never) {}

  void call(Urgency urgency) { commands.append(numbered(0), {}, {}, urgency); }
  /// How many calls have left since this was asked last.
  std::size_t left() {
    Bytes bytes(64 * sizeof(FrameHeader));
    return ends.first->receive_some(bytes) / sizeof(FrameHeader);
  }
  CommandStream::Left flush_overdue() { return commands.flush_some(CommandStream::Which::overdue); }
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
  /// Makes calls for a while, one after the other, and returns the median of the times between the sendings of its last
  /// half.
  Clock::duration gathers(Clock::duration time) {
    slow.sent.clear();
    const auto begin = Clock::now();
    while (Clock::now() - begin < time || slow.sent.size() < 6) {
      call(Urgency::later);
      pass(microseconds(3));
      left();
    }
    std::vector<Clock::duration> gaps;
    for (std::size_t i = slow.sent.size() / 2; i + 1 < slow.sent.size(); ++i)
      gaps.push_back(slow.sent[i + 1] - slow.sent[i]);
    std::sort(gaps.begin(), gaps.end());
    return gaps.at(gaps.size() / 2);
  }
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
  SlowChannel slow;
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

TEST_CASE("what stayed leaves when no call has come for twice as long as calls gather") {
  Fixture f;
  CHECK(f.flush_overdue() == CommandStream::Left::nothing);
  REQUIRE(f.one_stays());
  Fixture::pause();
  CHECK(f.flush_overdue() == CommandStream::Left::nothing);
  CHECK(f.left() == 1);
  CHECK(f.flush_overdue() == CommandStream::Left::nothing);
  CHECK(f.left() == 0);
}

TEST_CASE("what stayed is not overdue at once, and leaves if it is to") {
  Fixture f;
  bool young = false;
  for (int attempt = 0; attempt < 1000 && !young; ++attempt) {
    REQUIRE(f.one_stays());
    young = f.flush_overdue() == CommandStream::Left::young;
    CHECK(f.left() == (young ? 0 : 1));
    if (!young) continue;
    CHECK(f.commands.flush_some(CommandStream::Which::all) == CommandStream::Left::nothing);
    CHECK(f.left() == 1);
  }
  CHECK(young);
}

// A thread that is held up has paused, and begins anew: one of several attempts has to show it.
TEST_CASE("the longer calls follow one another, the longer they gather, until somebody waits or the program pauses") {
  Fixture f;
  const Bytes large(9000);
  const std::function<bool()> ends[] = {
      [&] {
        f.call(Urgency::now);
        return true;
      },
      [&] {
        f.commands.append(numbered(0), {}, large, Urgency::now);
        return true;
      },
      [&] {
        f.commands.flush();
        return true;
      },
      [&] {
        f.call(Urgency::later);
        f.call(Urgency::later);
        while (f.left() > 0) {}
        pass(std::chrono::milliseconds(1));
        f.flush_overdue();
        return f.left() > 0;
      },
      [&] {
        pass(microseconds(300));
        f.call(Urgency::later);  // leaves, with what was there
        pass(std::chrono::milliseconds(1));
        return true;
      },
  };
  for (const auto& end : ends) {
    bool shown = false;
    for (int attempt = 0; attempt < 50 && !shown; ++attempt) {
      const bool longer = f.gathers(std::chrono::milliseconds(16)) > microseconds(150);
      const bool ended = end();
      shown = longer && ended && f.gathers(microseconds(200)) < microseconds(100);
    }
    CHECK(shown);
  }
}
