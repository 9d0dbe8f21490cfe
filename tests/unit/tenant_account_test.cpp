// Memory that the sessions of a tenant hold together.

#include "server/quota/tenant_account.h"

#include <catch2/catch.hpp>
#include <unistd.h>

#include <thread>
#include <vector>

#include "protocol/errors.h"
#include "server/quota/ledger.h"

using namespace fargpu;
using namespace fargpu::server;

namespace {

struct Tenant {
  explicit Tenant(std::size_t slots = 8) : account(std::make_shared<TenantAccount>(slots)) {}
  Ledger session(std::uint64_t lease, std::uint64_t limit) {
    const std::size_t slot = account->begin(lease, limit == 0);
    REQUIRE(slot < account->slots());
    return Ledger({limit, limit}, AccountPlace{account, slot});
  }
  std::shared_ptr<TenantAccount> account;
};

}  // namespace

TEST_CASE("accounts: the sum of a lease's sessions counts, to the byte") {
  Tenant tenant;
  Ledger one = tenant.session(1, 1000), two = tenant.session(1, 1000), stranger = tenant.session(2, 1000);
  CHECK(one.charge(0, 600));
  CHECK_FALSE(two.charge(0, 401));
  CHECK(two.share(0).left == 400);
  CHECK(two.charge(0, 400));
  CHECK_FALSE(one.charge(0, 1));
  CHECK(one.charge(1, 1000));  // another device
  CHECK(stranger.charge(0, 1000));
  one.credit(0, 600);
  CHECK(two.charge(0, 600));
  CHECK(two.charged() == std::vector<std::uint64_t>{1000, 0});
}

TEST_CASE("accounts: what a session held is free when the broker says that it is gone") {
  Tenant tenant;
  const std::size_t slot = tenant.account->begin(1, false);
  Ledger dead({1000}, AccountPlace{tenant.account, slot}), alive = tenant.session(1, 1000);
  CHECK(dead.charge(0, 1000));
  CHECK_FALSE(alive.charge(0, 1));
  tenant.account->end(slot);
  CHECK(alive.charge(0, 1000));
  CHECK(tenant.account->begin(5, false) == slot);  // and its place is another's
}

TEST_CASE("accounts: what a session has inherited counts as what it was charged for") {
  Tenant tenant;
  tenant.account->set_unreserved_max(1000);
  Ledger heir = tenant.session(1, 1000), free = tenant.session(2, 0);
  tenant.account->slot(0).inherited[0] = 300;
  CHECK_FALSE(heir.charge(0, 701));
  CHECK(heir.charge(0, 700));
  tenant.account->slot(1).inherited[1] = 400;
  CHECK_FALSE(free.charge(0, 601));
  CHECK(free.share(0).left == 600);
  tenant.account->end(0);
  CHECK(tenant.account->held(1, 0) == 0);
}

TEST_CASE("accounts: leases without memory of their own share what the tenant has left, on all devices") {
  Tenant tenant;
  tenant.account->set_unreserved_max(1000);
  Ledger one = tenant.session(1, 0), two = tenant.session(2, 0), kept = tenant.session(3, 500);
  CHECK(one.charge(0, 300));
  CHECK(two.charge(1, 300));
  CHECK(two.share(0).limit == 1000);
  CHECK(two.share(0).left == 400);
  CHECK_FALSE(one.charge(1, 401));
  CHECK(kept.charge(0, 500));  // what it has is its own
  CHECK(one.charge(1, 400));
  tenant.account->set_unreserved_max(100);
  CHECK_FALSE(two.charge(0, 1));
  CHECK(two.share(0).left == 0);
}

TEST_CASE("accounts: what the driver took for itself counts") {
  Tenant tenant;
  Ledger one = tenant.session(1, 1000), two = tenant.session(1, 1000);
  tenant.account->slot(0).taken[0] = 300;
  CHECK(two.share(0).left == 700);
  CHECK_FALSE(two.charge(0, 701));
  CHECK(two.charge(0, 700));
  CHECK_FALSE(one.charge(0, 1));
}

TEST_CASE("accounts: racing sessions get all there is and not a byte more") {
  constexpr std::size_t sessions = 64;
  constexpr std::uint64_t limit = 100'000, piece = 100;
  Tenant tenant(sessions);
  std::vector<Ledger> ledgers;
  for (std::size_t i = 0; i < sessions; ++i) ledgers.push_back(tenant.session(1, limit));
  std::atomic<std::uint64_t> got{0};
  std::vector<std::thread> threads;
  for (Ledger& ledger : ledgers) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i)
        if (ledger.charge(0, piece)) got += piece;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(got <= limit);
  CHECK(tenant.account->held(1, 0) == got);
  // Sessions that stood back for each other at the very end may have left something, which is still to be had.
  while (ledgers[0].charge(0, piece)) got += piece;
  CHECK(got == limit);
}

TEST_CASE("accounts: nonsense in shared memory makes nobody richer, and nobody crash") {
  Tenant tenant;
  Ledger victim = tenant.session(1, 1000);
  AccountSlot& hostile = tenant.account->slot(5);
  hostile.lease = 1;
  hostile.charged[0] = ~std::uint64_t{0};
  hostile.taken[0] = ~std::uint64_t{0};
  tenant.session(1, 1000);  // so that the slot is looked at
  for (int i = 0; i < 4; ++i) tenant.account->begin(2, false);
  CHECK(tenant.account->held(1, 0) == ~std::uint64_t{0});
  CHECK_FALSE(victim.charge(0, 1));
}

TEST_CASE("accounts: another process sees the same") {
  Tenant tenant;
  Ledger here = tenant.session(1, 1000);
  TenantAccount there = TenantAccount::open(::dup(tenant.account->descriptor()));
  CHECK(there.slots() == tenant.account->slots());
  CHECK(here.charge(0, 123));
  CHECK(there.held(1, 0) == 123);
  CHECK(::ftruncate(there.descriptor(), 0) != 0);  // it cannot be taken away
}

TEST_CASE("accounts: what is none is refused") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK_THROWS_AS(TenantAccount::open(ends[0]), SystemError);
  ::close(ends[1]);
}

TEST_CASE("accounts: the next broker finds what sessions hold, and what ended meanwhile is free") {
  Tenant tenant;
  Ledger stays = tenant.session(7, 1000), gone = tenant.session(8, 1000);
  REQUIRE(stays.charge(0, 600));
  REQUIRE(gone.charge(0, 500));
  tenant.account->slot(0).inherited[0] = 100;
  auto next = TenantAccount::open(::dup(tenant.account->descriptor()));
  CHECK(next.same_memory(*tenant.account));
  CHECK_FALSE(next.same_memory(TenantAccount(8)));
  next.take_over(0, 7, false);
  CHECK(next.taken_over(0));
  CHECK_FALSE(next.taken_over(1));
  CHECK(next.all_taken_over(/*all=*/true) == 7);
  CHECK(next.held(7, 0) == 600);
  CHECK(next.held(8, 0) == 0);
  CHECK(next.begin(9, false) == 1);
  CHECK(stays.charge(0, 400));
  CHECK_FALSE(stays.charge(0, 1));
}

TEST_CASE("accounts: sessions that are left alone keep their slots, and leases their numbers") {
  Tenant tenant;
  Ledger stays = tenant.session(7, 1000), alone = tenant.session(8, 1000);
  REQUIRE(alone.charge(0, 500));
  auto next = TenantAccount::open(::dup(tenant.account->descriptor()));
  next.take_over(0, 7, false);
  CHECK(next.all_taken_over(/*all=*/false) == 8);
  CHECK(next.held(8, 0) == 500);
  CHECK(next.begin(9, false) == 2);
  alone.credit(0, 500);
  CHECK(next.held(8, 0) == 0);
}
