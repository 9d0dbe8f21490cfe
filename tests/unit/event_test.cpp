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
  event.hear(10, /*failed=*/false);
  event.recorded = second;
  SECTION("nobody has asked about the second one") {
    raise(event.watched, 10);
    CHECK(event.watch(second) == Event::Watch::none);
  }
  SECTION("another thread has") {
    raise(event.watched, 12);
    raise(event.watched, 10);
    CHECK(event.watch(second) == Event::Watch::waiting);
    event.hear(12, /*failed=*/false);
    CHECK(event.watch(second) == Event::Watch::over);
    event.hear(12, /*failed=*/true);
    CHECK(event.watch(second) == Event::Watch::none);
  }
}

TEST_CASE("queries are told of by the low bits of their calls' numbers") {
  Event event;
  constexpr std::uint64_t record = (std::uint64_t{1} << 32) - 2;
  event.recorded = record;
  raise(event.watched, record + 4);
  event.hear(static_cast<std::uint32_t>(record + 1), /*failed=*/false);
  CHECK(event.watch(record) == Event::Watch::waiting);
  event.hear(static_cast<std::uint32_t>(record + 4), /*failed=*/false);
  CHECK(event.watch(record) == Event::Watch::over);
}

TEST_CASE("what was told long ago says nothing of a new record, however many calls lie between") {
  Event event;
  event.recorded = 1;
  raise(event.watched, 2);
  event.hear(2, /*failed=*/false);
  for (const std::uint64_t later : {std::uint64_t{3} << 30, std::uint64_t{5} << 30, std::uint64_t{9} << 33}) {
    event.recorded = later;
    raise(event.watched, later + 1);
    CHECK(event.watch(later) == Event::Watch::waiting);
    event.hear(static_cast<std::uint32_t>(later + 1), /*failed=*/false);
    CHECK(event.watch(later) == Event::Watch::over);
  }
}
