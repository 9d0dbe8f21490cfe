// What lies where, as the client knows it.

#include "client/memory/memory_map.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

using namespace fargpu::client;

namespace {

Region region(std::uint64_t base, std::uint64_t bytes, Region::Kind kind = Region::Kind::device) {
  return {.kind = kind, .base = base, .bytes = bytes};
}

}  // namespace

TEST_CASE("an address finds the region that holds it") {
  MemoryMap map;
  REQUIRE(map.add(region(1000, 100)));
  REQUIRE(map.add(region(2000, 50)));
  CHECK_FALSE(map.find(0));
  CHECK_FALSE(map.find(999));
  CHECK(map.find(1000)->base == 1000);
  CHECK(map.find(1099)->base == 1000);
  CHECK_FALSE(map.find(1100));
  CHECK(map.find(2049)->base == 2000);
  CHECK_FALSE(map.find(2050));
  CHECK_FALSE(map.find(~std::uint64_t{0}));
}

TEST_CASE("regions never overlap") {
  MemoryMap map;
  REQUIRE(map.add(region(1000, 100)));
  CHECK_FALSE(map.add(region(1000, 100)));
  CHECK_FALSE(map.add(region(1000, 1)));
  CHECK_FALSE(map.add(region(900, 101)));
  CHECK_FALSE(map.add(region(1099, 1)));
  CHECK_FALSE(map.add(region(900, 1000)));
  CHECK_FALSE(map.add(region(1050, 10)));
  CHECK(map.add(region(900, 100)));
  CHECK(map.add(region(1100, 100)));
  CHECK(map.overlaps(999, 1));
  CHECK(map.overlaps(1199, 1));
  CHECK_FALSE(map.overlaps(1200, 100));
  CHECK_FALSE(map.overlaps(800, 100));
  CHECK(map.overlaps(800, 101));
  CHECK(map.overlaps(0, 5000));
}

TEST_CASE("a region is removed by its beginning only, and only if it is of the right kind") {
  MemoryMap map;
  REQUIRE(map.add(region(1000, 100)));
  CHECK_FALSE(map.remove(1001));
  CHECK_FALSE(map.remove_if(1000, [](const Region& r) { return r.on_host(); }));
  CHECK(map.find(1000));
  CHECK(map.remove_if(1000, [](const Region& r) { return r.on_device(); })->bytes == 100);
  CHECK_FALSE(map.find(1000));
  CHECK_FALSE(map.remove(1000));
  CHECK(map.add(region(950, 100)));
  CHECK(map.remove(950)->base == 950);
}

TEST_CASE("a region is changed in place, and others are taken out by what they are") {
  MemoryMap map;
  REQUIRE(map.add(region(1000, 100)));
  REQUIRE(map.add(region(2000, 100, Region::Kind::host)));
  REQUIRE(map.add(region(3000, 100, Region::Kind::host)));
  CHECK(map.update(2000, [](Region& r) { r.device_address = 77; }));
  CHECK(map.find(2050)->device_address == 77);
  CHECK_FALSE(map.update(2001, [](Region&) { FAIL("there is no such region"); }));
  const auto gone = map.extract([](const Region& r) { return r.on_host(); });
  REQUIRE(gone.size() == 2);
  CHECK(gone[0].base == 2000);
  CHECK(gone[1].base == 3000);
  CHECK_FALSE(map.find(2000));
  CHECK(map.find(1000));
}

TEST_CASE("a range is covered by one piece of device memory, or by mappings without gaps") {
  MemoryMap map;
  REQUIRE(map.add(region(1000, 100)));
  REQUIRE(map.add(region(1100, 100)));
  REQUIRE(map.add(region(1200, 100, Region::Kind::mapped)));
  REQUIRE(map.add(region(1300, 100, Region::Kind::mapped)));
  REQUIRE(map.add(region(1400, 100, Region::Kind::global)));
  REQUIRE(map.add(region(1500, 100, Region::Kind::host)));
  REQUIRE(map.add(region(1700, 100, Region::Kind::alias)));
  REQUIRE(map.add(region(1900, 100, Region::Kind::mapped)));
  CHECK(map.covered(1000, 1));
  CHECK(map.covered(1000, 100));
  CHECK(map.covered(1200, 200));
  CHECK(map.covered(1250, 100));
  CHECK(map.covered(1499, 1));
  CHECK(map.covered(1750, 50));
  CHECK_FALSE(map.covered(999, 10));
  CHECK_FALSE(map.covered(1050, 51));   // the next allocation
  CHECK_FALSE(map.covered(1150, 51));   // a mapping
  CHECK_FALSE(map.covered(1350, 51));   // a variable
  CHECK_FALSE(map.covered(1450, 51));   // memory of the host
  CHECK_FALSE(map.covered(1300, 601));  // a gap before the next mapping
  CHECK_FALSE(map.covered(1500, 10));
  CHECK_FALSE(map.covered(1600, 10));
  CHECK_FALSE(map.covered(1750, 51));
  CHECK_FALSE(map.covered(1000, ~std::uint64_t{0}));
  CHECK_FALSE(map.covered(~std::uint64_t{0} - 10, 20));
}

TEST_CASE("what a region holds is asked without overflow") {
  const Region r = region(1000, 100);
  CHECK(r.contains(1000, 100));
  CHECK(r.contains(1099, 1));
  CHECK(r.contains(1100, 0));
  CHECK_FALSE(r.contains(1099, 2));
  CHECK_FALSE(r.contains(999, 1));
  CHECK_FALSE(r.contains(1050, ~std::uint64_t{0}));
  CHECK_FALSE(r.contains(~std::uint64_t{0}, 2));
}

TEST_CASE("buffer ids are never given twice") {
  MemoryMap map;
  const std::uint64_t first = map.next_buffer_id();
  CHECK(first != 0);
  CHECK(map.next_buffer_id() > first);
}

TEST_CASE("readers meet whole regions while others come and go") {
  MemoryMap map;
  std::atomic<bool> stop{false};
  std::atomic<unsigned> torn{0}, seen{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        const auto found = map.find(5050);
        if (!found) continue;
        ++seen;
        if (found->base != 5000 || found->bytes != found->buffer_id) ++torn;
      }
    });
  }
  for (std::uint64_t round = 0; round < 20000 || seen.load() == 0; ++round) {
    Region r = region(5000, 100 + round % 7);
    r.buffer_id = r.bytes;
    REQUIRE(map.add(r));
    REQUIRE(map.remove(5000));
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(torn == 0);
}
