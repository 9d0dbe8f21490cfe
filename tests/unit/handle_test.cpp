// Handle values: what programs and the wire see.

#include <cuda.h>

#include <catch2/catch.hpp>
#include <set>

#include "protocol/handle.h"

using namespace fargpu;

TEST_CASE("kind, index and generation come back from a handle's value") {
  for (unsigned k = 1; k <= handle_kind_max; ++k) {
    const auto kind = static_cast<HandleKind>(k);
    for (const std::uint32_t index :
         {0u, 1u, 255u, Handle::worker_index_first - 1, Handle::worker_index_first, Handle::index_max}) {
      for (const std::uint32_t generation : {0u, 1u, 77u, Handle::generation_max}) {
        const Handle handle(kind, index, generation);
        CHECK(handle.kind() == kind);
        CHECK(handle.index() == index);
        CHECK(handle.generation() == generation);
        CHECK(handle.well_formed(kind));
        CHECK(Handle(handle.value()) == handle);
        CHECK(Handle::from_id(kind, handle.id()) == handle);
      }
    }
  }
}

TEST_CASE("values look like pointers of user space and never like a special value") {
  for (unsigned k = 1; k <= handle_kind_max; ++k) {
    for (const std::uint32_t id : {0u, 1u, 0x80000000u, 0xFFFFFFFFu}) {
      const std::uint64_t value = Handle::from_id(static_cast<HandleKind>(k), id).value();
      CHECK(value % 16 == 0);      // programs keep tags in the low bits
      CHECK(value > 0xFFFF'FFFF);  // neither 0, 1, 2 nor any 32-bit number
      CHECK(value < std::uint64_t{1} << 47);
    }
  }
}

TEST_CASE("values of different kinds, indices or generations differ") {
  std::set<std::uint64_t> values;
  unsigned count = 0;
  for (unsigned k = 1; k <= handle_kind_max; ++k)
    for (std::uint32_t index = 0; index < 20; ++index)
      for (std::uint32_t generation = 0; generation < 20; ++generation, ++count)
        values.insert(Handle(static_cast<HandleKind>(k), index, generation).value());
  CHECK(values.size() == count);
}

TEST_CASE("a handle of another kind, or no handle at all, is not well-formed") {
  const Handle stream(HandleKind::stream, 12, 3);
  for (unsigned k = 0; k <= 63; ++k)
    CHECK(stream.well_formed(static_cast<HandleKind>(k)) == (k == static_cast<unsigned>(HandleKind::stream)));
  for (const std::uint64_t value : {0ull, 1ull, 2ull, ~0ull, 0x7f12'3456'7890ull, 0x1000'0000'0000ull})
    for (unsigned k = 1; k <= handle_kind_max; ++k) CHECK_FALSE(Handle(value).well_formed(static_cast<HandleKind>(k)));
}

TEST_CASE("a single changed bit is noticed, or is another index, generation or origin") {
  const Handle event(HandleKind::event, 0x12345, 0x678);
  for (unsigned bit = 0; bit < 64; ++bit) {
    const Handle changed(event.value() ^ std::uint64_t{1} << bit);
    const bool in_id = bit >= 4 && bit < 36, in_origin = bit >= 42 && bit < 45;
    CHECK(changed.well_formed(HandleKind::event) == (in_id || in_origin));
    CHECK(changed.well_formed(HandleKind::event, 0) == in_id);
    if (in_id) CHECK(changed.id() != event.id());
  }
}

TEST_CASE("a handle is of one session of its process") {
  for (unsigned origin = 0; origin <= Handle::origin_max; ++origin) {
    const Handle handle(HandleKind::stream, 12, 3, origin);
    CHECK(handle.origin() == origin);
    CHECK(handle.well_formed(HandleKind::stream));
    for (unsigned other = 0; other <= Handle::origin_max; ++other)
      CHECK(handle.well_formed(HandleKind::stream, other) == (other == origin));
    CHECK(Handle::from_id(HandleKind::stream, handle.id(), origin) == handle);
    CHECK(handle.kind() == HandleKind::stream);
    CHECK(handle.id() == Handle(HandleKind::stream, 12, 3).id());
    CHECK(handle.value() < std::uint64_t{1} << 47);
  }
}

TEST_CASE("numbers out of range are cut, so that no other field is touched") {
  const Handle handle(HandleKind::graph, Handle::index_max + 6, Handle::generation_max + 3);
  CHECK(handle.well_formed(HandleKind::graph));
  CHECK(handle.index() == 5);
  CHECK(handle.generation() == 2);
}

TEST_CASE("a null handle is false, all others true") {
  CHECK_FALSE(Handle());
  CHECK(Handle().value() == 0);
  CHECK(Handle(HandleKind::context, 0, 0));
}

TEST_CASE("CUDA's types hold handles, pointers and numbers alike") {
  const Handle handle(HandleKind::stream, 4, 1), allocation(HandleKind::allocation, 9, 2);
  const auto stream = handle_cast<CUstream>(handle);
  CHECK(handle_of(stream) == handle);
  const auto memory = handle_cast<CUmemGenericAllocationHandle>(allocation);
  CHECK(memory == allocation.value());
  CHECK(handle_of(memory) == allocation);
  CHECK(handle_cast<CUstream>(Handle()) == nullptr);
}
