// Memory of the host that a session may take.

#include "server/quota/host_budget.h"

#include <catch2/catch.hpp>

using namespace fargpu::server;

TEST_CASE("a budget of the host's memory is not exceeded by a byte, whatever is asked for") {
  HostBudget budget(100);
  CHECK(budget.charge(60));
  CHECK_FALSE(budget.charge(41));
  CHECK_FALSE(budget.charge(~std::uint64_t{0}));
  CHECK(budget.charge(40));
  CHECK_FALSE(budget.charge(1));
  CHECK(budget.charge(0));
  budget.credit(40);
  CHECK(budget.charged() == 60);
  CHECK(HostBudget(0).charge(~std::uint64_t{0}));
}

TEST_CASE("the first refusal is told") {
  int told = 0;
  HostBudget budget(10, std::nullopt, [&](HostBudget::Bound bound) {
    ++told;
    CHECK(bound == HostBudget::Bound::session);
  });
  CHECK(budget.charge(10));
  CHECK(told == 0);
  CHECK_FALSE(budget.charge(1));
  CHECK_FALSE(budget.charge(1));
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
    CHECK(budget.charged() == 60);
    auto second = HostCharge::take(budget, 40);
    REQUIRE(second);
    kept = std::move(*second);
    second.reset();
    CHECK(budget.charged() == 40);
    kept = HostCharge();
    CHECK(budget.charged() == 0);
    kept = std::move(*HostCharge::take(budget, 5));
    CHECK(budget.charged() == 5);
  }
  CHECK(budget.charged() == 0);
}

TEST_CASE("a charge that shrinks gives back the rest, to the session and to the lease") {
  const AccountPlace place{std::make_shared<TenantAccount>(1), 0};
  place.account->begin(/*lease=*/1, /*unreserved=*/false);
  {
    HostBudget budget(100, place);
    auto charge = HostCharge::take(budget, 80);
    REQUIRE(charge);
    charge->shrink(30);
    CHECK(budget.charged() == 30);
    CHECK(place.account->held_of_host(1) == 30);
    charge->shrink(30);
    CHECK(budget.charged() == 30);
    charge.reset();
    CHECK(budget.charged() == 0);
  }
  CHECK(place.account->held_of_host(1) == 0);
}
