// What calls that may have to wait at the worker take of its memory.

#include "protocol/credit.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <thread>
#include <vector>

#include "client/call/call_credit.h"
#include "client/objects/thread.h"
#include "lone_session.h"
#include "protocol/errors.h"
#include "server/worker/call/call_credit.h"

using namespace fargpu;
using namespace fargpu::test;
using namespace std::chrono_literals;

TEST_CASE("of the credit some is left for work without bytes, and a little for those that may not wait") {
  client::CallCredit credit(800);
  CHECK(credit.take(400, CreditShare::bytes));
  CHECK_FALSE(credit.take(1, CreditShare::bytes));
  CHECK(credit.take(300, CreditShare::work));
  CHECK_FALSE(credit.take(1, CreditShare::work));
  CHECK(credit.take(100, CreditShare::all));
  CHECK_FALSE(credit.take(1, CreditShare::all));
  credit.settled(100);
  CHECK_FALSE(credit.take(1, CreditShare::work));
  CHECK(credit.take(100, CreditShare::all));
  credit.settled(900);
  CHECK(credit.take(5000, CreditShare::bytes));  // alone
  CHECK_FALSE(credit.take(1, CreditShare::all));
  credit.settled(5900);
  CHECK(credit.take(700, CreditShare::work));
}

TEST_CASE("credit: that there is none counts from the first who found none, until some is settled") {
  client::CallCredit credit(800);
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(credit.take(400, CreditShare::bytes));
  CHECK(credit.none_since(begin) == begin);
  CHECK(credit.none_since(begin + 5s) == begin);
  credit.settled(1);
  CHECK(credit.none_since(begin + 6s) == begin + 6s);
}

TEST_CASE("a worker settles what was sent, and each of it once") {
  client::CallCredit credit(1000);
  CHECK_THROWS_AS(credit.settled(1), ProtocolError);
  CHECK(credit.take(500, CreditShare::all));
  credit.settled(400);
  CHECK_THROWS_AS(credit.settled(399), ProtocolError);
  CHECK_THROWS_AS(credit.settled(501), ProtocolError);
  credit.settled(500);
}

TEST_CASE("credit that threads take at once is not exceeded, and all of it can be had") {
  client::CallCredit credit(8000);
  std::atomic<std::uint64_t> taken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      while (credit.take(7, CreditShare::all)) taken += 7;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(taken == 8000 / 7 * 7);
}

TEST_CASE("a worker that settles calls that were not sent loses its client") {
  LoneSession remote;
  remote.push([](wire::Control::Builder control) { control.initSettled().setBytes(1); });
  CHECK_THROWS_WITH(remote.session().calls.receiver.wait_until([] { return false; }),
                    Catch::Contains("the worker settles more calls than were sent"));
}

TEST_CASE("who waits for credit is woken when some is settled, and reads meanwhile") {
  LoneSession remote;
  client::Calls& calls = remote.session().calls;
  REQUIRE(calls.credit.take(credit_share(limits::credit_bytes, CreditShare::work), CreditShare::work));
  auto waits = std::async(std::launch::async, [&] { calls.take_credit(1000, CreditShare::work); });
  CHECK(waits.wait_for(50ms) == std::future_status::timeout);
  remote.push([](wire::Control::Builder control) { control.initSettled().setBytes(999); });
  CHECK(waits.wait_for(50ms) == std::future_status::timeout);
  remote.push([](wire::Control::Builder control) { control.initSettled().setBytes(1000); });
  CHECK_NOTHROW(waits.get());
}

TEST_CASE(
    "a worker keeps a part of the host's memory for calls: less where there is little, and not less than serves") {
  using server::CallCredit;
  using server::HostBudget;
  const auto granted = [](std::uint64_t bytes) {
    HostBudget budget(bytes);
    const CallCredit credit(budget);
    CHECK(budget.charged() == credit.granted());
    return credit.granted();
  };
  CHECK(granted(0) == limits::credit_bytes);
  CHECK(granted(1u << 30) == limits::credit_bytes);
  CHECK(granted(512u << 20) == limits::credit_bytes);
  CHECK(granted((512u << 20) - 1) == limits::credit_bytes / 2);
  CHECK(granted(8u << 20) == 512u << 10);
  CHECK(granted(1u << 20) == limits::credit_bytes_min);
  CHECK(granted(limits::credit_bytes_min) == limits::credit_bytes_min);
  CHECK(granted(limits::credit_bytes_min - 1) == 0);
}

TEST_CASE("a worker tells of what it has settled when that is much, and when it may be waited for") {
  server::HostBudget budget(0);
  server::CallCredit credit(budget);
  constexpr std::uint64_t mib = 1u << 20;
  CHECK_FALSE(credit.news(true));
  for (int i = 0; i < 3; ++i) (void)credit.take(mib);
  CHECK_FALSE(credit.news(true));  // nobody waits for so little
  (void)credit.take(mib);
  CHECK(credit.news(false) == 4 * mib);
  CHECK_FALSE(credit.news(true));
  server::TakenCredit kept = credit.take(20 * mib);
  (void)credit.take(1000);
  CHECK_FALSE(credit.news(false));
  CHECK(credit.news(true) == 4 * mib + 1000);
  (void)credit.take(mib);
  CHECK(credit.news(false) == 5 * mib + 1000);
  CHECK_THROWS_AS(credit.take(13 * mib), ProtocolError);
  { const server::TakenCredit over = std::move(kept); }
  CHECK(credit.news(false) == 25 * mib + 1000);
}
