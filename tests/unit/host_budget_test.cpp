// Memory of the host that a session may take.

#include "server/worker/memory/host_budget.h"

#include <catch2/catch.hpp>

using namespace fargpu::server;

TEST_CASE("a budget of the host's memory is not exceeded by a byte, whatever is asked for") {
  HostBudget budget(100);
  CHECK(budget.take(60));
  CHECK_FALSE(budget.take(41));
  CHECK_FALSE(budget.take(~std::uint64_t{0}));
  CHECK(budget.take(40));
  CHECK_FALSE(budget.take(1));
  CHECK(budget.take(0));
  budget.give(40);
  CHECK(budget.taken() == 60);
  CHECK(HostBudget(0).take(~std::uint64_t{0}));
}

TEST_CASE("the first refusal is told") {
  int told = 0;
  HostBudget budget(10, std::nullopt, [&](HostBudget::Bound bound) {
    ++told;
    CHECK(bound == HostBudget::Bound::session);
  });
  CHECK(budget.take(10));
  CHECK(told == 0);
  CHECK_FALSE(budget.take(1));
  CHECK_FALSE(budget.take(1));
  CHECK(told == 1);
}

TEST_CASE("a charge ends with what it is for, once, wherever it went") {
  HostBudget budget(100);
  {
    auto first = HostCharge::take(budget, 60);
    REQUIRE(first);
    CHECK_FALSE(HostCharge::take(budget, 60));
    HostCharge kept = std::move(*first);
    first.reset();
    CHECK(budget.taken() == 60);
    auto second = HostCharge::take(budget, 40);
    REQUIRE(second);
    kept = std::move(*second);
    second.reset();
    CHECK(budget.taken() == 40);
    kept = HostCharge();
    CHECK(budget.taken() == 0);
    kept = std::move(*HostCharge::take(budget, 5));
    CHECK(budget.taken() == 5);
  }
  CHECK(budget.taken() == 0);
}
