// What the sessions of a lease may move over the network.

#include "server/quota/paced_channel.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <thread>

#include "protocol/errors.h"

using namespace fargpu;
using namespace fargpu::server;
using namespace std::chrono_literals;
using Time = Bandwidth::Time;

namespace {

constexpr std::uint64_t rate = 10'000'000;

struct Lease {
  explicit Lease(std::uint64_t bytes = rate) { account->set_bandwidth(bytes); }
  Bandwidth session(std::uint64_t lease = 1) { return Bandwidth({account, account->begin(lease, false)}); }
  std::shared_ptr<TenantAccount> account = std::make_shared<TenantAccount>(8);
};

}  // namespace

TEST_CASE("bandwidth: what is taken in a time is the rate and what was saved up, however many take") {
  Lease lease;
  Bandwidth one = lease.session(), two = lease.session();
  const Time begin = 1h;
  std::uint64_t moved = 0;
  for (Time now = begin; now < begin + 1s; now += 100us)
    moved += one.take(1u << 20, Time(0), now) + two.take(50'000, Time(0), now);
  CHECK(moved <= rate + rate / 20);  // 50 ms are saved up
  CHECK(moved >= rate + rate / 20 - rate / 500 - 50'000);
}

TEST_CASE("bandwidth: leases do not take from each other, and a lease that follows another owes nothing") {
  Lease leases;
  Bandwidth one = leases.session(1), other = leases.session(2);
  const Time now = 1h;
  one.take_all(100'000'000, now);
  CHECK(one.take(1000, Time(0), now) == 0);
  CHECK(one.take(1000, Time(0), now + 9s) == 0);  // ten seconds' worth
  CHECK(one.wait(Time(0), now) > 0ms);
  CHECK(one.wait(Time(0), now) <= 1s);
  CHECK(other.take(1000, Time(0), now) == 1000);
  leases.account->end(0);
  Bandwidth next = leases.session(3);
  CHECK(next.take(1000, Time(0), now) == 1000);
}

TEST_CASE("bandwidth: what was not moved is given back, and without a limit there is none") {
  Lease lease;
  Bandwidth one = lease.session();
  const Time now = 1h;
  const std::size_t all = one.take(1u << 30, Time(0), now);
  CHECK(all == Approx(rate / 20).margin(10));
  CHECK(one.take(1u << 20, Time(0), now) == 0);
  CHECK(one.take(1u << 20, 10ms, now) == Approx(rate / 100).margin(10));  // the first among channels
  one.give_back(all);
  CHECK(one.take(1u << 30, Time(0), now) == Approx(rate / 20 - rate / 100).margin(20));
  lease.account->set_bandwidth(TenantAccount::no_limit);
  CHECK(one.take(1u << 30, Time(0), now) == 1u << 30);
  CHECK(one.wait(Time(0), now) == 0ms);
}

TEST_CASE("bandwidth: a time that a hostile worker wrote makes its lease wait, and nobody wait for ever at once") {
  Lease lease;
  Bandwidth one = lease.session();
  for (const std::int64_t nonsense :
       {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}}) {
    lease.account->paid(0) = nonsense;
    CHECK(one.take(1000, 50ms, 1h) <= 1000);
    CHECK(one.wait(50ms, 1h) <= 1s);
  }
}

TEST_CASE("bandwidth: an end that sends as fast as it can gets no more through than the rate, and all of it arrives") {
  Lease lease;
  auto [near, far] = make_memory_channel();
  const auto shared = std::make_shared<Bandwidth>(lease.session());
  auto paced = pace(std::move(near), shared, GENERATE(false, true));
  constexpr std::size_t all = 3'000'000;
  const bool out = GENERATE(false, true);
  Channel& from = out ? *paced : *far;
  Channel& to = out ? *far : *paced;
  const auto begin = Bandwidth::Clock::now();
  std::thread sender([&] {
    std::vector<std::byte> bytes(all, std::byte{7});
    const Channel::Bytes piece(bytes);
    send_all(from, std::span(&piece, 1));
  });
  std::vector<std::byte> buffer(1u << 18);
  std::size_t got = 0;
  bool right = true, held = true;
  while (got < all) {
    const std::size_t now = to.receive_some(buffer);
    for (std::size_t i = 0; i < now; ++i) right = right && buffer[i] == std::byte{7};
    got += now;
    const double seconds = std::chrono::duration<double>(Bandwidth::Clock::now() - begin).count();
    // Saved up; and for the first channel as much again ahead.
    held = held && static_cast<double>(got) <= rate * (seconds + 0.101);
    if (now == 0) to.wait({.readable = true}, 1s);
  }
  sender.join();
  CHECK(right);
  CHECK(held);
  CHECK(lease.account->moved(1) == all);
}

TEST_CASE("bandwidth: answers do not wait behind contents, and are paid for") {
  Lease lease;
  auto [near, far] = make_memory_channel();
  const auto shared = std::make_shared<Bandwidth>(lease.session());
  auto paced = pace(std::move(near), shared, true);
  shared->take_all(rate);  // a second's worth
  const Time before(lease.account->paid(0).load());
  std::vector<std::byte> answer(1000), contents(100'000);
  const Channel::Bytes small(answer), large(contents);
  CHECK(paced->send_some(std::span(&small, 1)) == 1000);
  CHECK(paced->send_some(std::span(&large, 1)) == 0);
  CHECK(lease.account->paid(0).load() - before.count() == Approx(100'000).margin(2));  // 1000 bytes at 10 MB/s
  far->close();
  CHECK_THROWS_AS(paced->send_some(std::span(&small, 1)), ChannelClosed);
}
