// The memory through which bytes pass between connection and GPU.

#include "server/worker/memory/staging.h"

#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "frames.h"

using namespace fargpu::server;
using fargpu::test::Bytes;

namespace {

struct Space {
  explicit Space(std::size_t bytes) : memory(bytes), space(memory) {}
  // Where a part begins, or -1.
  long take(std::size_t bytes, std::uint64_t owner = 0) {
    const auto part = space.take(bytes, owner);
    if (!part) return -1;
    CHECK(part->size() == bytes);
    return part->data() - memory.data();
  }
  void give(long begin, std::size_t bytes) {
    space.give(std::span(memory).subspan(static_cast<std::size_t>(begin), bytes));
  }

  Bytes memory;
  StagingSpace space;
};

}  // namespace

TEST_CASE("no memory has no room") {
  StagingSpace none;
  CHECK_FALSE(none.take(0));
  CHECK_FALSE(none.take(1));
  CHECK(none.empty());
  std::byte somewhere{};
  CHECK_FALSE(none.contains(&somewhere));
}

TEST_CASE("parts follow each other at multiples of 64") {
  Space r(1024);
  CHECK(r.take(1) == 0);
  CHECK(r.take(64) == 64);
  CHECK(r.take(65) == 128);
  CHECK(r.take(100) == 256);
  CHECK_FALSE(r.space.empty());
  CHECK(r.take(1024) == -1);
  CHECK(r.take(640) == 384);
  CHECK(r.take(1) == -1);
}

TEST_CASE("more than all of it never fits") {
  Space r(1024);
  CHECK(r.take(1025) == -1);
  CHECK(r.take(~std::size_t{0} - 100) == -1);
  CHECK(r.take(1024) == 0);
  r.give(0, 1024);
  CHECK(r.space.empty());
  CHECK(r.take(1024) == 0);
}

TEST_CASE("parts are given back in any order, and are free at once") {
  Space r(256);
  REQUIRE(r.take(64) == 0);
  REQUIRE(r.take(64) == 64);
  REQUIRE(r.take(64) == 128);
  REQUIRE(r.take(64) == 192);
  r.give(64, 64);
  CHECK(r.take(128) == -1);
  CHECK(r.take(64) == 64);
  r.give(64, 64);
  r.give(128, 64);
  CHECK(r.take(128) == 64);  // in one piece
  CHECK(r.take(1) == -1);
  r.give(192, 64);
  r.give(0, 64);
  r.give(64, 128);
  CHECK(r.take(256) == 0);
}

TEST_CASE("a part lies in one piece") {
  Space r(320);
  REQUIRE(r.take(128) == 0);
  REQUIRE(r.take(128) == 128);
  r.give(0, 128);
  CHECK(r.take(192) == -1);
  CHECK(r.take(128) == 0);
  CHECK(r.take(64) == 256);
}

TEST_CASE("an owner leaves others half of what there is, and where there is no other an eighth") {
  Space r(1024);
  unsigned parts = 0;
  while (r.take(64, 1) >= 0) ++parts;
  CHECK(parts == 14);
  for (int i = 6; i < 14; ++i) r.give(64 * i, 64);
  CHECK(r.take(64, 2) == 6 * 64);
  CHECK(r.take(64, 1) == 7 * 64);
  parts = 0;
  while (r.take(64, 2) >= 0) ++parts;
  CHECK(parts == 3);
  CHECK(r.take(64, 1) == -1);
  const long whole = r.take(320, 3);  // its only one
  CHECK(whole >= 0);
  CHECK(r.take(64, 4) == -1);
  r.give(whole, 320);
  CHECK(r.take(320) >= 0);  // nobody's
}

TEST_CASE("parts of no bytes can be told apart and given back") {
  Space r(256);
  REQUIRE(r.take(0) == 0);
  REQUIRE(r.take(0) == 64);
  r.give(64, 0);
  CHECK_FALSE(r.space.empty());
  r.give(0, 0);
  CHECK(r.space.empty());
}

TEST_CASE("what is no part of it is not given back") {
  Space r(256);
  Bytes other(64);
  REQUIRE(r.take(64) == 0);
  r.space.give(other);
  r.space.give({});
  r.give(64, 64);
  CHECK_FALSE(r.space.empty());
  CHECK(r.space.contains(r.memory.data()));
  CHECK(r.space.contains(r.memory.data() + 255));
  CHECK_FALSE(r.space.contains(r.memory.data() + 256));
  CHECK_FALSE(r.space.contains(other.data()));
}

TEST_CASE("over a long random life no two parts ever overlap") {
  Space r(4096);
  struct Part {
    long begin;
    std::size_t bytes;
  };
  std::vector<Part> held;
  std::vector<unsigned> owner(4096, 0);
  std::mt19937 random(5);
  unsigned taken = 0;
  for (unsigned round = 1; round < 20000; ++round) {
    const std::size_t bytes = random() % 700;
    if (const long begin = r.take(bytes); begin >= 0) {
      ++taken;
      REQUIRE(begin % 64 == 0);
      REQUIRE(static_cast<std::size_t>(begin) + bytes <= 4096);
      for (std::size_t i = 0; i < bytes; ++i) {
        if (owner[static_cast<std::size_t>(begin) + i] != 0) FAIL("round " << round << ": a part overlaps another");
        owner[static_cast<std::size_t>(begin) + i] = round;
      }
      held.push_back({begin, bytes});
    }
    while (!held.empty() && random() % 3 != 0) {
      const std::size_t which = random() % held.size();
      const Part part = held[which];
      r.give(part.begin, part.bytes);
      std::fill_n(owner.begin() + part.begin, part.bytes, 0);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  CHECK(taken > 10000);
  for (const Part& part : held) r.give(part.begin, part.bytes);
  CHECK(r.space.empty());
}
