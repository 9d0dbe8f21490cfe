// What differs between two states of a block.

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

TEST_CASE("runs that lie close together are one stretch") {
  const Bytes before = pattern(1000);
  Bytes now = before;
  const auto stretches = [&](std::size_t gap) {
    Runs found;
    for_changed_stretches(now, before, gap,
                          [&](std::size_t offset, std::size_t bytes) { found.emplace_back(offset, bytes); });
    return found;
  };
  CHECK(stretches(16).empty());
  for (const std::size_t at : {0, 20, 100, 999}) change(now, at);
  CHECK(stretches(0) == runs_of(now, before));
  CHECK(stretches(16) == Runs{{0, 4}, {20, 4}, {100, 4}, {996, 4}});
  CHECK(stretches(17) == Runs{{0, 24}, {100, 4}, {996, 4}});
  CHECK(stretches(77) == Runs{{0, 104}, {996, 4}});
  CHECK(stretches(2000) == Runs{{0, 1000}});
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
