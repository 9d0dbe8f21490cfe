// Which chunks are named, on lines and with hosts whose behaviour is known.

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <map>

#include "client/call/content_choice.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace std::chrono_literals;
using Way = ContentChoice::Way;

namespace {

constexpr std::uint64_t chunk = 1u << 20, gib = 1u << 30;
constexpr std::uint64_t store = 4 * gib;

/// A program that copies, and a host that answers at once.
struct Program {
  explicit Program(ContentCache cache, std::uint64_t kept = store, unsigned threads = 4)
      : choice({cache, kept}, threads) {}
  /// Copies so much, of which the host knows all or nothing. How many chunks went which way.
  std::map<Way, unsigned> copy(std::uint64_t bytes, bool known, ContentChoice::Clock::duration each = 1ms) {
    std::map<Way, unsigned> ways;
    for (; bytes >= chunk; bytes -= chunk) {
      const Way way = choice.next(chunk, rate, now);
      now += each;
      ++ways[way];
      if (way != Way::named && way != Way::asked) continue;
      choice.hashed(chunk, hashing);
      choice.answered(way, known, chunk, now - waiting, now);
    }
    return ways;
  }
  ContentChoice choice;
  ContentChoice::Clock::time_point now{1h};
  std::optional<double> rate = 1.25e9;
  ContentChoice::Clock::duration hashing = 600us;
  ContentChoice::Clock::duration waiting = 0ms;  // for an answer
};

}  // namespace

TEST_CASE("nothing is named where that is off, or the host keeps nothing") {
  CHECK(Program(ContentCache::never).copy(gib, true)[Way::plain] == 1024);
  CHECK(Program(ContentCache::automatic, 0).copy(gib, true)[Way::plain] == 1024);
  CHECK(Program(ContentCache::always, 0).copy(gib, true)[Way::plain] == 1024);
}

TEST_CASE("what the host knows is named, all of it") {
  const auto cache = GENERATE(ContentCache::automatic, ContentCache::always);
  CHECK(Program(cache).copy(gib, true)[Way::named] == 1024);
}

TEST_CASE("what the host does not know is sent at once and kept, but for the first of it") {
  const auto cache = GENERATE(ContentCache::automatic, ContentCache::always);
  Program program(cache);
  auto ways = program.copy(gib, false);
  CHECK(ways[Way::named] == 8);
  CHECK(ways[Way::asked] == 127);
  CHECK(ways[Way::kept] == 1024 - 8 - 127);
  // And back, as soon as an answer says so.
  CHECK(program.copy(gib, true)[Way::named] >= 1024 - 8);
}

TEST_CASE("on a line that is faster than hashing nothing is named, unless the user says so") {
  Program program(ContentCache::automatic);
  program.rate = 6e9;
  program.copy(16 * chunk, true);
  auto ways = program.copy(gib, true);
  CHECK(ways[Way::plain] >= 1022);  // hashing is measured again now and then
  program.rate = 3.5e9;
  ways = program.copy(gib, true);
  CHECK(ways[Way::plain] == 0);
  program.rate = 4.5e9;
  program.hashing = 1us;
  CHECK(program.copy(gib, true)[Way::plain] >= 1022);
  Program always(ContentCache::always);
  always.rate = 1e12;
  CHECK(always.copy(gib, true)[Way::named] == 1024);
}

TEST_CASE("a processor that was too slow for a while is measured again") {
  Program program(ContentCache::automatic);
  program.hashing = 100ms;
  program.copy(64 * chunk, true);
  CHECK(program.copy(gib / 2, true)[Way::plain] == 512);
  program.hashing = 100us;
  program.copy(gib, true);
  CHECK(program.copy(gib, true)[Way::named] >= 1024 - 8);
}

TEST_CASE("nothing is named before the line has shown how fast it is, unless the user says so") {
  Program program(ContentCache::automatic), always(ContentCache::always);
  program.rate = always.rate = std::nullopt;
  CHECK(program.copy(gib, true)[Way::plain] == 1024);
  CHECK(always.copy(gib, true)[Way::named] == 1024);
  program.rate = 1.25e9;
  CHECK(program.copy(gib, true)[Way::named] == 1024);
}

TEST_CASE("where everything is known, a little is sent now and then to learn how fast the line is") {
  Program program(ContentCache::automatic), always(ContentCache::always);
  auto ways = program.copy(8 * gib, true);
  CHECK(ways[Way::kept] == 8 * (8192 / 2056));
  CHECK(ways[Way::named] == 8192 - ways[Way::kept]);
  CHECK(always.copy(8 * gib, true)[Way::named] == 8192);
}

TEST_CASE("of a host that reads what it knows more slowly than the line brings it little is wanted, now and then") {
  Program program(ContentCache::automatic);
  // So many chunks have room there at a time, and one after the other comes from the disk.
  constexpr std::size_t room = 36;
  struct Named {
    ContentChoice::Clock::time_point said, read;
  };
  std::deque<Named> named;
  const auto load = [&](std::uint64_t bytes, ContentChoice::Clock::duration disk) {
    unsigned count = 0;
    const auto hear = [&] {
      program.now = std::max(program.now, named.front().read);
      program.choice.answered(Way::named, true, chunk, named.front().said, named.front().read);
      named.pop_front();
    };
    for (; bytes >= chunk; bytes -= chunk) {
      if (program.choice.next(chunk, program.rate, program.now) == Way::named) {
        ++count;
        program.choice.hashed(chunk, program.hashing);
        named.push_back({program.now, std::max(program.now, named.empty() ? program.now : named.back().read) + disk});
        program.now += 10us;
      } else {
        program.now += 800us;
      }
      while (named.size() >= room || (!named.empty() && named.front().read <= program.now)) hear();
    }
    while (!named.empty()) hear();
    return count;
  };
  SECTION("from a fast disk all is wanted") { CHECK(load(gib, 200us) == 1024); }
  SECTION("from a slow one, until its contents are in memory") {
    const unsigned some = load(4 * gib, 5ms);
    CHECK(some >= 64);
    CHECK(some < 256);
    load(8 * gib, 200us);
    CHECK(load(gib, 200us) >= 1024 - 8);
  }
  SECTION("an answer that takes long because the line is long says nothing of the disk") {
    program.waiting = 200ms;
    CHECK(program.copy(gib, true)[Way::named] == 1024);
  }
}

TEST_CASE("a program whose contents no host knows comes to rest, for ever longer") {
  Program program(ContentCache::automatic);
  SECTION("once it has sent what the host can keep") { program.copy(store + 2 * chunk, false); }
  SECTION("once it has gone on for minutes") { program.copy(200 * chunk, false, 1s); }
  std::uint64_t before = 0;
  for (int round = 0; round < 4; ++round) {
    std::uint64_t rest = 0;
    while (program.choice.next(chunk, program.rate, program.now) == Way::plain) ++rest;
    CHECK(rest > before + before / 2);
    before = rest;
    program.copy(64 * chunk, false);  // a look at whether that has changed
  }
  // It wakes as soon as the host knows something again.
  program.copy(2 * store, true);
  CHECK(program.copy(gib, true)[Way::named] >= 1024 - 8);
}

TEST_CASE("a pause of the program counts for little") {
  Program program(ContentCache::automatic);
  program.copy(64 * chunk, false);
  program.now += 1h;
  CHECK(program.copy(gib, false)[Way::plain] == 0);
}
