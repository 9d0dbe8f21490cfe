// Dividing the window.

#include "client/base/address_ranges.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

using fargpu::client::AddressRanges;

TEST_CASE("an empty range has nothing to give") {
  AddressRanges none;
  CHECK_FALSE(none.take(1, 1));
  CHECK(none.empty());
  CHECK(none.free_bytes() == 0);
  CHECK_FALSE(none.take_at(0, 1));
}

TEST_CASE("parts are taken from the beginning on and given back") {
  AddressRanges ranges(0x1000, 0x1000);
  CHECK(ranges.base() == 0x1000);
  CHECK(ranges.bytes() == 0x1000);
  CHECK(ranges.take(0x100, 1) == 0x1000);
  CHECK(ranges.take(0x100, 1) == 0x1100);
  CHECK(ranges.free_bytes() == 0xE00);
  CHECK_FALSE(ranges.empty());
  ranges.give(0x1000, 0x100);
  CHECK(ranges.take(0x80, 1) == 0x1000);
  ranges.give(0x1000, 0x80);
  ranges.give(0x1100, 0x100);
  CHECK(ranges.empty());
  CHECK(ranges.take(0x1000, 1) == 0x1000);
  CHECK_FALSE(ranges.take(1, 1));
}

TEST_CASE("the smallest part that is large enough is used") {
  AddressRanges ranges(0, 1000);
  REQUIRE(ranges.take(1000, 1));
  ranges.give(100, 50);
  ranges.give(300, 20);
  ranges.give(500, 50);
  CHECK(ranges.take(15, 1) == 300);
  CHECK(ranges.take(40, 1) == 100);  // of two alike, the first
  CHECK(ranges.take(50, 1) == 500);
  CHECK_FALSE(ranges.take(11, 1));
  CHECK(ranges.take(10, 1) == 140);
}

TEST_CASE("alignment is kept, and what lies before stays free") {
  AddressRanges ranges(0x1010, 0x10000);
  CHECK(ranges.take(0x100, 0x1000) == 0x2000);
  CHECK(ranges.free_bytes() == 0xFF00);
  CHECK(ranges.take(0xFF0, 0x10) == 0x1010);
  CHECK(ranges.take(0x1000, 0x8000) == 0x8000);
  CHECK_FALSE(ranges.take(0x1000, 0x100000));
  // Large enough, but not where it is aligned.
  AddressRanges odd(0x1001, 0x1000);
  CHECK_FALSE(odd.take(0x1000, 2));
  CHECK(odd.take(0xFFF, 2) == 0x1002);
}

TEST_CASE("a wished part is taken exactly there or not at all") {
  AddressRanges ranges(0x1000, 0x1000);
  CHECK(ranges.take_at(0x1800, 0x100));
  CHECK_FALSE(ranges.take_at(0x1800, 0x100));
  CHECK_FALSE(ranges.take_at(0x1880, 0x10));
  CHECK_FALSE(ranges.take_at(0x17FF, 2));
  CHECK_FALSE(ranges.take_at(0x18FF, 2));
  CHECK_FALSE(ranges.take_at(0xFFF, 2));
  CHECK_FALSE(ranges.take_at(0x1FFF, 2));
  CHECK_FALSE(ranges.take_at(0x2000, 1));
  CHECK_FALSE(ranges.take_at(0x1900, ~std::uint64_t{0}));
  CHECK(ranges.take_at(0x1000, 0x800));
  CHECK(ranges.take_at(0x1900, 0x700));
  CHECK(ranges.free_bytes() == 0);
}

TEST_CASE("freed neighbours merge, on either side and on both") {
  AddressRanges ranges(0, 400);
  REQUIRE(ranges.take(400, 1));
  ranges.give(0, 100);
  ranges.give(100, 100);  // behind a free part
  CHECK(ranges.take(200, 1) == 0);
  ranges.give(200, 100);
  ranges.give(100, 100);  // in front of one
  CHECK(ranges.take(200, 1) == 100);
  ranges.give(0, 100);
  ranges.give(100, 100);
  ranges.give(300, 100);
  ranges.give(200, 100);  // between two
  CHECK(ranges.empty());
  CHECK(ranges.take(400, 1) == 0);
}

TEST_CASE("a long random life agrees with a plain table of cells") {
  constexpr std::uint64_t base = 64, cells = 512;
  AddressRanges ranges(base, cells);
  std::vector<bool> taken(cells, false);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> held;
  std::mt19937 random(11);
  for (unsigned round = 0; round < 20000; ++round) {
    if (random() % 2 == 0 || held.empty()) {
      const std::uint64_t bytes = 1 + random() % 40, alignment = std::uint64_t{1} << random() % 5;
      if (const auto address = ranges.take(bytes, alignment)) {
        REQUIRE(*address % alignment == 0);
        REQUIRE(*address >= base);
        REQUIRE(*address + bytes <= base + cells);
        for (std::uint64_t i = 0; i < bytes; ++i) {
          if (taken[*address - base + i]) FAIL("cell taken twice");
          taken[*address - base + i] = true;
        }
        held.emplace_back(*address, bytes);
      } else {
        // Then there really is no such place.
        for (std::uint64_t at = (base + alignment - 1) / alignment * alignment; at + bytes <= base + cells;
             at += alignment) {
          std::uint64_t run = 0;
          while (run < bytes && !taken[at - base + run]) ++run;
          if (run == bytes) FAIL("a free place was not found");
        }
      }
    } else {
      const std::size_t which = random() % held.size();
      const auto [address, bytes] = held[which];
      ranges.give(address, bytes);
      for (std::uint64_t i = 0; i < bytes; ++i) taken[address - base + i] = false;
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    }
    const auto free = static_cast<std::uint64_t>(std::count(taken.begin(), taken.end(), false));
    if (ranges.free_bytes() != free)
      FAIL("round " << round << ": " << ranges.free_bytes() << " free instead of " << free);
  }
}
