// What a session holds against what it may.

#include <catch2/catch.hpp>

#include "server/quota/ledger.h"

using fargpu::server::Ledger;

TEST_CASE("charges stop at the limit, to the byte") {
  Ledger ledger({1000});
  CHECK(ledger.limit(0) == 1000);
  CHECK_FALSE(ledger.charge(0, 1001));
  CHECK(ledger.charged()[0] == 0);
  CHECK(ledger.charge(0, 600));
  CHECK_FALSE(ledger.charge(0, 401));
  CHECK(ledger.charge(0, 400));
  CHECK_FALSE(ledger.charge(0, 1));
  CHECK(ledger.charge(0, 0));
  CHECK(ledger.charged()[0] == 1000);
}

TEST_CASE("a refusal names its bound, once for each kind") {
  std::vector<Ledger::Refusal> told;
  Ledger ledger({1000}, std::nullopt, [&](const Ledger::Refusal& refusal) { told.push_back(refusal); });
  REQUIRE(ledger.charge(0, 600));
  CHECK_FALSE(ledger.charge(0, 500));
  CHECK_FALSE(ledger.charge(0, 700));
  ledger.device_full(0, 300);
  ledger.device_full(0, 400);
  REQUIRE(told.size() == 2);
  CHECK(told[0].bound == Ledger::Bound::lease);
  CHECK((told[0].asked == 500 && told[0].limit == 1000 && told[0].left == 400));
  CHECK(told[1].bound == Ledger::Bound::device);
  CHECK(told[1].asked == 300);
}

TEST_CASE("what others see that a session holds is what it was not refused") {
  using fargpu::server::AccountPlace;
  const auto account = std::make_shared<fargpu::server::TenantAccount>(2);
  account->set_unreserved_max(1000);
  const AccountPlace first{account, account->begin(1, true)}, second{account, account->begin(2, true)};
  Ledger one({0}, first), other({0}, second);
  const auto held = [&](const AccountPlace& place) { return account->slot(place.slot).held[0].load(); };
  REQUIRE(one.charge(0, 600));
  CHECK_FALSE(other.charge(0, 500));
  CHECK((held(first) == 600 && held(second) == 0));
  REQUIRE(other.charge(0, 400));
  one.credit(0, 250);
  CHECK((held(first) == 350 && held(second) == 400));
  // While one asks, what it asks for counts for the others, and is not held yet.
  const bool refused = !fargpu::server::announce(account->slot(second.slot).charged[0], 500, second.slot, [&] {
    CHECK(account->held_unreserved() == 1250);
    CHECK(held(first) + held(second) == 750);
    return false;
  });
  CHECK(refused);
  account->end(first.slot);
  CHECK(held(first) == 0);
}

TEST_CASE("credits make room again") {
  Ledger ledger({1000});
  REQUIRE(ledger.charge(0, 1000));
  ledger.credit(0, 300);
  CHECK_FALSE(ledger.charge(0, 301));
  CHECK(ledger.charge(0, 300));
  ledger.credit(0, 1000);
  CHECK(ledger.charged()[0] == 0);
}

TEST_CASE("sizes near the end of the numbers do not pass by overflow") {
  Ledger ledger({1000});
  REQUIRE(ledger.charge(0, 10));
  CHECK_FALSE(ledger.charge(0, ~std::uint64_t{0}));
  CHECK_FALSE(ledger.charge(0, ~std::uint64_t{0} - 9));
  CHECK(ledger.charged()[0] == 10);
}

TEST_CASE("each device has its own limit, and none means none") {
  Ledger ledger({1000, 0, 50});
  CHECK(ledger.charge(1, std::uint64_t{1} << 50));
  CHECK_FALSE(ledger.charge(2, 51));
  CHECK(ledger.charge(2, 50));
  CHECK(ledger.charge(0, 1000));
  CHECK(ledger.charged() == std::vector<std::uint64_t>{1000, std::uint64_t{1} << 50, 50});
}

TEST_CASE("what goes with memory goes while it is still charged") {
  struct Look {
    ~Look() { seen = ledger.charged()[0]; }
    Ledger& ledger;
    std::uint64_t& seen;
  };
  Ledger ledger({1000});
  std::uint64_t seen = 0;
  auto charge = fargpu::server::Charge::take(ledger, 0, 700);
  REQUIRE(charge);
  charge->companion = std::shared_ptr<Look>(new Look{ledger, seen});
  charge.reset();
  CHECK(seen == 700);
  CHECK(ledger.charged()[0] == 0);
}
