// The ring through which bytes pass between connection and GPU.

#include "server/worker/memory/staging.h"

#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "frames.h"

using namespace fargpu::server;
using fargpu::test::Bytes;

namespace {

struct Ring {
  explicit Ring(std::size_t bytes) : memory(bytes), ring(memory) {}
  // Where a part begins, or -1.
  long take(std::size_t bytes) {
    const auto part = ring.take(bytes);
    if (!part) return -1;
    CHECK(part->size() == bytes);
    return part->data() - memory.data();
  }
  void give(long begin, std::size_t bytes) {
    ring.give(std::span(memory).subspan(static_cast<std::size_t>(begin), bytes));
  }

  Bytes memory;
  StagingRing ring;
};

}  // namespace

TEST_CASE("a ring of no memory has no room") {
  StagingRing none;
  CHECK_FALSE(none.take(0));
  CHECK_FALSE(none.take(1));
  CHECK(none.empty());
  std::byte somewhere{};
  CHECK_FALSE(none.contains(&somewhere));
}

TEST_CASE("parts follow each other at multiples of 64") {
  Ring r(1024);
  CHECK(r.take(1) == 0);
  CHECK(r.take(64) == 64);
  CHECK(r.take(65) == 128);
  CHECK(r.take(100) == 256);
  CHECK_FALSE(r.ring.empty());
  CHECK(r.take(1024) == -1);
  CHECK(r.take(640) == 384);
  CHECK(r.take(1) == -1);
}

TEST_CASE("more than the whole ring never fits") {
  Ring r(1024);
  CHECK(r.take(1025) == -1);
  CHECK(r.take(~std::size_t{0} - 100) == -1);
  CHECK(r.take(1024) == 0);
  r.give(0, 1024);
  CHECK(r.ring.empty());
  CHECK(r.take(1024) == 0);
}

TEST_CASE("parts are given back in any order, and free once all before them are") {
  Ring r(256);
  REQUIRE(r.take(64) == 0);
  REQUIRE(r.take(64) == 64);
  REQUIRE(r.take(64) == 128);
  REQUIRE(r.take(64) == 192);
  r.give(64, 64);
  CHECK(r.take(64) == -1);  // the first is still in use
  r.give(128, 64);
  CHECK(r.take(64) == -1);
  r.give(0, 64);
  CHECK(r.take(64) == 0);
  CHECK(r.take(128) == 64);
  CHECK(r.take(1) == -1);
  r.give(192, 64);
  CHECK(r.take(64) == 192);
}

TEST_CASE("a part lies in one piece: what is left at the end is skipped") {
  Ring r(320);
  REQUIRE(r.take(128) == 0);
  REQUIRE(r.take(128) == 128);
  r.give(0, 128);
  CHECK(r.take(128) == 0);  // 64 at the end would have been free
  CHECK(r.take(64) == -1);
  r.give(128, 128);
  CHECK(r.take(192) == 128);
}

TEST_CASE("parts of no bytes can be told apart and given back") {
  Ring r(256);
  REQUIRE(r.take(0) == 0);
  REQUIRE(r.take(0) == 64);
  r.give(64, 0);
  CHECK_FALSE(r.ring.empty());
  r.give(0, 0);
  CHECK(r.ring.empty());
}

TEST_CASE("what is no part of the ring is not given back") {
  Ring r(256);
  Bytes other(64);
  REQUIRE(r.take(64) == 0);
  r.ring.give(other);
  r.ring.give({});
  r.give(64, 64);
  CHECK_FALSE(r.ring.empty());
  CHECK(r.ring.contains(r.memory.data()));
  CHECK(r.ring.contains(r.memory.data() + 255));
  CHECK_FALSE(r.ring.contains(r.memory.data() + 256));
  CHECK_FALSE(r.ring.contains(other.data()));
}

TEST_CASE("over a long random life no two parts ever overlap") {
  Ring r(4096);
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
  CHECK(r.ring.empty());
}
