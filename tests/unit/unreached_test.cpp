// Hosts of a pool that did not answer clients of some address.

#include "server/broker/unreached.h"

#include <catch2/catch.hpp>

#include <fmt/format.h>

namespace fargpu::server {
namespace {

using Names = std::vector<std::string>;

TEST_CASE("hosts that did not answer are remembered for a while, of each address its own") {
  Unreached unreached;
  const auto now = Unreached::Clock::now();
  unreached.note("10.0.0.1", "b", now);
  unreached.note("10.0.0.1", "a", now + Unreached::remembered_for / 2);
  unreached.note("10.0.0.2", "c", now);
  CHECK(unreached.of("10.0.0.1", now) == Names{"a", "b"});
  CHECK(unreached.of("10.0.0.2", now) == Names{"c"});
  CHECK(unreached.of("10.0.0.3", now).empty());
  CHECK(unreached.of("10.0.0.1", now + Unreached::remembered_for) == Names{"a"});
  CHECK(unreached.of("10.0.0.1", now + 2 * Unreached::remembered_for).empty());
}

TEST_CASE("no client makes a broker remember more than so many hosts") {
  Unreached unreached;
  const auto now = Unreached::Clock::now();
  for (std::size_t i = 0; i < 2 * Unreached::hosts_max; ++i) unreached.note("a", fmt::format("{}", i), now);
  CHECK(unreached.of("a", now).size() == Unreached::hosts_max);
  const auto name = [](std::size_t i) { return fmt::format("{}", i); };
  for (std::size_t i = 0; i < 2 * Unreached::addresses_max; ++i) {
    unreached.note(name(i), "h", now);
    CHECK(unreached.of(name(i), now) == Names{"h"});
  }
  std::size_t known = 0;
  for (std::size_t i = 0; i < 2 * Unreached::addresses_max; ++i) known += unreached.of(name(i), now).size();
  CHECK(known <= Unreached::addresses_max);
}

}  // namespace
}  // namespace fargpu::server
