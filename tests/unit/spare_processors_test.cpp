// Which threads wait by looking again and again, and where.

#include "protocol/spare_processors.h"

#include <sched.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

using namespace fargpu;
using namespace std::chrono_literals;

namespace {

using Clock = SpareProcessors::Clock;
const Clock::time_point noon = Clock::time_point(12h);

std::chrono::nanoseconds ran;  // of the thread that a test pretends to be

}  // namespace

TEST_CASE("processors are to spare until a thread has lost a good part of its time to others") {
  SpareProcessors spare;
  CHECK(spare.any(noon));
  spare.note(1ms, 1ms, noon);
  CHECK(spare.any(noon));  // too little to tell
  spare.note(1ms, 0ms, noon);
  CHECK_FALSE(spare.any(noon));
  CHECK(spare.first_look(noon) == SpareProcessors::least);
  CHECK_FALSE(spare.any(noon + SpareProcessors::pause_least - 1ms));
  CHECK(spare.any(noon + SpareProcessors::pause_least));
  CHECK(spare.first_look(noon + SpareProcessors::pause_least) == SpareProcessors::moment);
}

TEST_CASE("a thread that stands aside now and then for a moment may go on") {
  SpareProcessors spare;
  for (int i = 0; i < 1000; ++i) spare.note(10ms, 1ms, noon);
  CHECK(spare.any(noon));
}

TEST_CASE(
    "where processors stay busy, it is asked less and less often, and anew after the first time that they are not") {
  SpareProcessors spare;
  Clock::time_point now = noon;
  const auto pause = [&] {
    auto length = 0ms;
    for (; !spare.any(now + length); ++length) {}
    return length;
  };
  for (const auto expected : {50ms, 100ms, 200ms, 400ms, 800ms, 800ms}) {
    spare.note(3ms, 2ms, now);
    CHECK(pause() == expected);
    now += expected;
  }
  spare.note(3ms, 0ms, now);
  CHECK(spare.any(now));
  spare.note(3ms, 2ms, now);
  CHECK(pause() == 50ms);
}

TEST_CASE("what a spell measures is what the thread did not run of its time") {
  SpareProcessors spare;
  ran = 7s;
  Spell spell(spare, [] { return ran; });
  Clock::time_point now = noon;
  SECTION("it runs") {
    for (int i = 0; i < 1000; ++i, now += 20us, ran += 20us) CHECK(spell.go_on(now));
  }
  SECTION("it runs for half of it") {
    int looks = 0;
    for (; spell.go_on(now); now += 20us, ran += 10us) ++looks;
    CHECK(looks * 20us >= SpareProcessors::verdict_after);
    CHECK(looks * 20us < 2 * SpareProcessors::verdict_after);
    CHECK_FALSE(spell.go_on(now + 1ms));
    CHECK(spell.go_on(now + SpareProcessors::pause_least));  // it tries again
  }
  SECTION("it sleeps in between, which is no loss") {
    for (int i = 0; i < 1000; ++i) {
      CHECK(spell.go_on(Clock::now()));
      ran += 1s;  // more than passes here: nothing is lost
      spell.stop();
    }
  }
}

TEST_CASE("a thread that shares its processor with one that computes finds none to spare") {
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
  int processor = 0;
  while (!CPU_ISSET(processor, &before)) ++processor;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);  // the threads that it starts too
  std::atomic<bool> over{false};
  std::thread computing([&] {
    while (!over) {}
  });
  SpareProcessors spare;
  Spell spell(spare);
  const auto begin = Clock::now();
  bool found = false;
  while (!found && Clock::now() - begin < 30s) found = !spell.go_on(Clock::now());
  over = true;
  computing.join();
  REQUIRE(sched_setaffinity(0, sizeof(before), &before) == 0);
  CHECK(found);
}
