// Bytes that copies will still bring to pinned memory.

#include "client/memory/expected_bytes.h"

#include <catch2/catch.hpp>

#include "client/objects/context.h"

using fargpu::client::Context;
using fargpu::client::ExpectedBytes;
using By = ExpectedBytes::By;
using Newest = ExpectedBytes::Newest;

namespace {

struct Expecting : ExpectedBytes {
  Context context;

  std::uint32_t expect(By by, std::uint64_t begin, std::uint64_t end) { return add(by, begin, end, context); }
  void check(std::uint64_t begin, std::uint64_t end, std::uint64_t bytes, Newest where) const {
    const Part part = newest(begin, end);
    CHECK(part.bytes == bytes);
    CHECK(part.newest == where);
  }
};

}  // namespace

TEST_CASE("expected bytes: what comes by the connection is at the worker until it has arrived, from its beginning on") {
  Expecting bytes;
  const auto first = bytes.expect(By::connection, 100, 200);
  const auto second = bytes.expect(By::connection, 100, 150);
  CHECK(first != second);
  bytes.check(0, 300, 100, Newest::here);
  bytes.check(100, 300, 50, Newest::at_worker);
  bytes.arrived(100, 150, second);
  bytes.check(100, 300, 100, Newest::at_worker);
  bytes.arrived(100, 160, first);
  bytes.check(100, 300, 60, Newest::here);
  bytes.over(first);
  CHECK(bytes.empty());
}

TEST_CASE("expected bytes: where some come by the lanes, nobody has all before they are there") {
  Expecting bytes;
  CHECK(bytes.expect(By::lanes, 100, 200) == 0);
  bytes.check(100, 200, 100, Newest::coming);
  bytes.expect(By::connection, 150, 160);
  bytes.check(150, 200, 10, Newest::coming);
  bytes.over(By::thread, 100, 200);  // another copy's
  bytes.over(0);
  bytes.arrived(100, 200, 0);
  bytes.check(100, 200, 50, Newest::coming);
  bytes.over(By::lanes, 100, 200);
  bytes.check(150, 200, 10, Newest::at_worker);
}

TEST_CASE("expected bytes: threads that read, or wait for a copy, use memory until they say that it is over") {
  Expecting bytes;
  bytes.begin_reading(10, 20);
  bytes.begin_reading(10, 20);
  bytes.expect(By::thread, 30, 40);
  CHECK(bytes.used_by_threads(0, 11));
  CHECK(bytes.used_by_threads(39, 50));
  CHECK_FALSE(bytes.used_by_threads(20, 30));
  bytes.reading_is_over(10, 20);
  CHECK(bytes.used_by_threads(0, 11));
  bytes.reading_is_over(10, 20);
  CHECK_FALSE(bytes.used_by_threads(0, 11));
  bytes.over(By::thread, 30, 40);
  CHECK(bytes.empty());
}

TEST_CASE("expected bytes: none come of contexts and to memory that is gone") {
  Expecting bytes;
  const Context other;
  bytes.expect(By::lanes, 0, 10);
  bytes.add(By::connection, 20, 30, other);
  CHECK(bytes.contexts(5, 25) == std::vector<const Context*>{&bytes.context, &other});
  bytes.forget(bytes.context);
  CHECK(bytes.contexts(5, 25) == std::vector<const Context*>{&other});
  bytes.forget(0, 20);
  CHECK(bytes.any(By::connection, 0, 21));
  bytes.forget(20, 30);
  CHECK(bytes.empty());
}
