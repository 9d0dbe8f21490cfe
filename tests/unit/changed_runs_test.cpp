// What differs between two states of a block.

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "frames.h"
#include "protocol/changed_runs.h"

using namespace fargpu;
using namespace fargpu::test;

namespace {

using Runs = std::vector<std::pair<std::size_t, std::size_t>>;

Runs runs_of(const Bytes& now, const Bytes& before) {
  Runs runs;
  for_changed_runs(now, before, [&](std::size_t offset, std::size_t bytes) { runs.emplace_back(offset, bytes); });
  return runs;
}

void change(Bytes& bytes, std::size_t at) { bytes[at] ^= std::byte{1}; }

}  // namespace

TEST_CASE("equal blocks have no runs") {
  CHECK(runs_of({}, {}).empty());
  CHECK(runs_of(pattern(1), pattern(1)).empty());
  CHECK(runs_of(pattern(1000), pattern(1000)).empty());
}

TEST_CASE("a run holds the words that differ and none that do not") {
  const Bytes before = pattern(64);
  Bytes now = before;
  change(now, 17);
  CHECK(runs_of(now, before) == Runs{{16, 4}});
  change(now, 31);
  CHECK(runs_of(now, before) == Runs{{16, 4}, {28, 4}});
  change(now, 40);
  CHECK(runs_of(now, before) == Runs{{16, 4}, {28, 4}, {40, 4}});
  change(now, 0);
  change(now, 63);
  CHECK(runs_of(now, before) == Runs{{0, 4}, {16, 4}, {28, 4}, {40, 4}, {60, 4}});
  change(now, 45);
  CHECK(runs_of(now, before) == Runs{{0, 4}, {16, 4}, {28, 4}, {40, 8}, {60, 4}});
}

TEST_CASE("long stretches without a change are passed over") {
  const Bytes before = pattern(20000);
  Bytes now = before;
  for (const std::size_t at : {0, 4095, 4096, 12500, 19999}) change(now, at);
  CHECK(runs_of(now, before) == Runs{{0, 4}, {4092, 8}, {12500, 4}, {19996, 4}});
}

TEST_CASE("the last word may be shorter") {
  const Bytes before = pattern(21);
  Bytes now = before;
  change(now, 20);
  CHECK(runs_of(now, before) == Runs{{20, 1}});
  change(now, 8);
  CHECK(runs_of(now, before) == Runs{{8, 4}, {20, 1}});
  change(now, 7);
  CHECK(runs_of(now, before) == Runs{{4, 8}, {20, 1}});
  Bytes one{std::byte{1}};
  CHECK(runs_of(one, {std::byte{2}}) == Runs{{0, 1}});
}

TEST_CASE("applying the runs to the old state gives the new one") {
  std::mt19937 random(7);
  for (unsigned round = 0; round < 200; ++round) {
    const Bytes before = pattern(random() % 300, round);
    Bytes now = before;
    for (unsigned changes = random() % 20; changes > 0 && !now.empty(); --changes) change(now, random() % now.size());
    Bytes rebuilt = before;
    std::size_t last_end = 0;
    for (const auto& [offset, bytes] : runs_of(now, before)) {
      CHECK((offset == 0 || offset > last_end));  // never two runs side by side
      CHECK(offset % 4 == 0);
      last_end = offset + bytes;
      REQUIRE(last_end <= now.size());
      std::copy_n(now.begin() + static_cast<std::ptrdiff_t>(offset), bytes,
                  rebuilt.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    CHECK(rebuilt == now);
  }
}

TEST_CASE("the other side's changes come beside this side's own") {
  alignas(8) std::byte now[64] = {}, known[64] = {};
  now[20] = std::byte{1};  // changed here, in the run that comes, in a word that does not
  const Bytes comes(16, std::byte{2});
  CHECK(exchange_words(now, known, comes) == comes.size());
  CHECK(std::count(now, now + 16, std::byte{2}) == 16);
  CHECK(now[20] == std::byte{1});
  CHECK(std::count(known, known + 16, std::byte{2}) == 16);
  CHECK(known[20] == std::byte{0});
  // Both to the same.
  now[32] = std::byte{3};
  Bytes same(8, std::byte{0});
  same[0] = std::byte{3};
  CHECK(exchange_words(now + 32, known + 32, same) == same.size());
  // Both, to something else: the other side's stays, and the first such word is told.
  now[44] = std::byte{4};
  const Bytes other(20, std::byte{5});
  CHECK(exchange_words(now + 40, known + 40, other) == 0);
  CHECK(std::count(now + 40, now + 60, std::byte{5}) == 20);
  now[57] = std::byte{6};
  CHECK(exchange_words(now + 40, known + 40, Bytes(20, std::byte{7})) == 16);
}

TEST_CASE("words that two sides changed are those that both changed to something else") {
  const Bytes before = pattern(64);
  Bytes one = before, other = before;
  CHECK(changed_by_both(one, other, before) == 64);
  change(one, 8);
  change(other, 12);
  CHECK(changed_by_both(one, other, before) == 64);
  change(one, 20);
  change(other, 20);
  CHECK(changed_by_both(one, other, before) == 64);  // to the same
  change(one, 33);
  change(other, 34);
  CHECK(changed_by_both(one, other, before) == 32);
  change(other, 8);
  other[8] ^= std::byte{2};
  CHECK(changed_by_both(one, other, before) == 8);
}
