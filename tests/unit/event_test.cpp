// What the client knows of events without asking.

#include "client/objects/context.h"

#include <catch2/catch.hpp>

using namespace fargpu::client;

TEST_CASE("what was told of an earlier record says nothing of a later one, whichever query notes its answer last") {
  Event event;
  constexpr std::uint64_t first = 9, second = 11;
  event.recorded = first;
  CHECK(event.watch(first) == Event::Watch::none);
  // The first record's query is answered, and its thread stops before it notes that. The second record comes.
  event.told = Event::Told{.query = 10, .any = true};
  event.recorded = second;
  SECTION("nobody has asked about the second one") {
    raise(event.watched, 10);
    CHECK(event.watch(second) == Event::Watch::none);
  }
  SECTION("another thread has") {
    raise(event.watched, 12);
    raise(event.watched, 10);
    CHECK(event.watch(second) == Event::Watch::waiting);
    event.told = Event::Told{.query = 12, .any = true};
    CHECK(event.watch(second) == Event::Watch::over);
    event.told = Event::Told{.query = 12, .any = true, .failed = true};
    CHECK(event.watch(second) == Event::Watch::none);
  }
}

TEST_CASE("queries are told of by the low bits of their calls' numbers") {
  Event event;
  constexpr std::uint64_t record = (std::uint64_t{1} << 32) - 2;
  event.recorded = record;
  raise(event.watched, record + 4);
  event.told = Event::Told{.query = static_cast<std::uint32_t>(record + 1), .any = true};
  CHECK(event.watch(record) == Event::Watch::waiting);
  event.told = Event::Told{.query = static_cast<std::uint32_t>(record + 4), .any = true};
  CHECK(event.watch(record) == Event::Watch::over);
}
