// Groups of multiprocessors as a text.

#include "server/sm_groups.h"

#include <catch2/catch.hpp>

using namespace fargpu::server;

TEST_CASE("groups of multiprocessors go to a worker and come there as they were") {
  for (const SmGroups& groups : {SmGroups{{0}}, SmGroups{{0, 1, 2}, {4}}, SmGroups{{7, 14}, {0}, {3, 127}}}) {
    const auto parsed = parse_sm_groups(text_of(groups));
    REQUIRE(parsed);
    CHECK(*parsed == groups);
  }
  CHECK(text_of(SmGroups{{0, 1, 2}, {4}}) == "0,1,2:4");
}

TEST_CASE("what are no groups of multiprocessors") {
  for (const char* const text :
       {"", ":", "0:", ":0", "0,", ",0", "1,0", "1,1", "0-3", "128", "-1", " 0", "0 ", "x", "0;1"})
    CHECK_FALSE(parse_sm_groups(text));
}
