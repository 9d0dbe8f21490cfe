// Hosts of a pool that did not answer clients of some machine.

#include "server/broker/unreached.h"

#include <catch2/catch.hpp>

#include <fmt/format.h>

namespace fargpu::server {
namespace {

using Names = std::vector<std::string>;

TEST_CASE("hosts that did not answer are remembered for a while, of each machine its own") {
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
  for (std::size_t i = 0; i < 2 * Unreached::machines_max; ++i) unreached.note(fmt::format("{}", i), "h", now);
  CHECK(unreached.of("0", now) == Names{"h"});
  CHECK(unreached.of(fmt::format("{}", 2 * Unreached::machines_max - 1), now).empty());
  const auto later = now + Unreached::remembered_for;
  unreached.note("new", "h", later);
  CHECK(unreached.of("new", later) == Names{"h"});
}

}  // namespace
}  // namespace fargpu::server
