// Which session pays for memory that sessions share.

#include "server/broker/shared_things.h"

#include <fcntl.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/message.h"

using namespace fargpu;
using namespace fargpu::server;

namespace {

constexpr pid_t maker = 10, one = 11, other = 12;

ShareKey key_of(int number) {
  ShareKey key{};
  std::memcpy(key.data(), &number, sizeof(number));
  return key;
}

/// What each worker pays for beside what it made, on device 2.
struct Host {
  std::map<pid_t, std::uint64_t> pays;
  SharedThings shares{100, [this](pid_t worker, int device, std::uint64_t bytes, bool more) {
                        CHECK(device == 2);
                        if (more) pays[worker] += bytes;
                        else pays[worker] -= bytes;
                      }};
  bool share(pid_t worker, int number, int came_by = 0, int device = 2) {
    MessageWriter writer;
    auto share = writer.root<wire::Share>();
    const ShareKey key = key_of(number), before = key_of(came_by);
    share.setKey(wire_of(key));
    share.setDevice(device);
    share.setBytes(1000);
    if (came_by != 0) share.setCameBy(wire_of(before));
    Descriptor descriptor(device < 0 ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return shares.add(worker, "tenant", share.asReader(), std::move(descriptor));
  }
  bool lend(pid_t worker, int number) {
    const ShareKey key = key_of(number);
    return shares.lend(wire_of(key), worker, [](pid_t) { return true; }) != nullptr;
  }
  void let_go(pid_t worker, int number) {
    const ShareKey key = key_of(number);
    shares.let_go(worker, wire_of(key));
  }
  void unshare(pid_t worker, int number) {
    const ShareKey key = key_of(number);
    shares.remove(worker, wire_of(key));
  }
};

using Pays = std::map<pid_t, std::uint64_t>;

}  // namespace

TEST_CASE("shares: events take no place of memory, and are so many at most") {
  Host host;
  constexpr int most = static_cast<int>(limits::shares_max);
  constexpr int event = -1;
  REQUIRE(most > 1000);
  int shared = 0;
  for (int number = 1; number < most; ++number) shared += host.share(maker, number, 0, event);
  CHECK(shared == most - 1);
  CHECK(host.share(maker, most));
  CHECK_FALSE(host.share(maker, most + 1));
  CHECK_FALSE(host.share(maker, most + 1, 0, event));
  host.unshare(maker, 1);
  CHECK(host.share(maker, most + 1, 0, event));
  CHECK(host.share(other, most + 2));
  MessageWriter writer;
  auto share = writer.root<wire::Share>();
  const ShareKey key = key_of(most + 3);
  share.setKey(wire_of(key));
  share.setDevice(event);
  CHECK_THROWS_AS(
      host.shares.add(maker, "tenant", share.asReader(), Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC))),
      ProtocolError);
}

TEST_CASE("shares: while its maker has memory nobody else pays for it") {
  Host host;
  REQUIRE(host.share(maker, 1));
  CHECK(host.lend(one, 1));
  CHECK(host.lend(other, 1));
  host.let_go(one, 1);
  host.let_go(other, 1);
  host.unshare(maker, 1);
  CHECK(host.pays.empty());
  CHECK_FALSE(host.lend(one, 1));
}

TEST_CASE("shares: what its maker has given up somebody pays for who has it, until the last has let it go") {
  Host host;
  REQUIRE(host.share(maker, 1));
  REQUIRE(host.lend(one, 1));
  REQUIRE(host.lend(one, 1));
  REQUIRE(host.lend(other, 1));
  const bool ended = GENERATE(false, true);
  if (ended) host.shares.remove_all(maker);
  else host.unshare(maker, 1);
  CHECK(host.pays == Pays{{one, 1000}});
  host.let_go(one, 1);
  CHECK(host.pays == Pays{{one, 1000}});  // it was opened twice
  SECTION("let go") {
    host.let_go(one, 1);
    CHECK(host.pays == Pays{{one, 0}, {other, 1000}});
    host.let_go(other, 1);
    CHECK(host.pays == Pays{{one, 0}, {other, 0}});
  }
  SECTION("an end") {
    host.shares.remove_all(one);  // its account ends with it
    CHECK(host.pays == Pays{{one, 1000}, {other, 1000}});
    host.shares.remove_all(one);
    host.shares.remove_all(other);
    CHECK(host.pays == Pays{{one, 1000}, {other, 1000}});
  }
}

TEST_CASE("shares: memory that was shared on is the same memory") {
  Host host;
  REQUIRE(host.share(maker, 1));
  REQUIRE(host.lend(one, 1));
  REQUIRE(host.share(one, 2, 1));
  REQUIRE(host.lend(other, 2));
  host.shares.remove_all(maker);
  CHECK(host.pays == Pays{{one, 1000}});
  host.unshare(one, 2);
  CHECK(host.pays == Pays{{one, 1000}});
  host.let_go(one, 1);
  CHECK(host.pays == Pays{{one, 0}, {other, 1000}});
}

TEST_CASE("shares: a maker may be its own heir, by another handle of the same memory") {
  Host host;
  REQUIRE(host.share(maker, 1));
  REQUIRE(host.lend(maker, 1));
  host.unshare(maker, 1);
  CHECK(host.pays == Pays{{maker, 1000}});
  host.let_go(maker, 1);
  CHECK(host.pays == Pays{{maker, 0}});
}

TEST_CASE("shares: a worker that says what makes no sense") {
  Host host;
  REQUIRE(host.share(maker, 1));
  CHECK_THROWS_AS(host.let_go(one, 1), ProtocolError);
  CHECK_THROWS_AS(host.share(one, 2, 1), ProtocolError);
  CHECK_THROWS_AS(host.share(one, 1), ProtocolError);
  CHECK_THROWS_AS(host.share(one, 3, 0, 64), ProtocolError);
  // A key that comes to mean something else.
  REQUIRE(host.lend(one, 1));
  host.unshare(maker, 1);
  REQUIRE(host.share(maker, 1));
  CHECK_FALSE(host.lend(one, 1));
  host.let_go(one, 1);
  CHECK(host.pays == Pays{{one, 0}});
  CHECK(host.lend(one, 1));
}

namespace {

/// As the next broker hears it.
void hold(Host& host, pid_t worker, int number, unsigned times = 1, int device = 2) {
  MessageWriter writer;
  auto holds = writer.root<wire::Holds>();
  const ShareKey key = key_of(number);
  holds.setKey(wire_of(key));
  holds.setDevice(device);
  holds.setBytes(1000);
  holds.setTimes(times);
  host.shares.take_over(worker, holds.asReader());
}

}  // namespace

TEST_CASE("shares: of sessions that are taken over, makers pay, and those that hold what nobody is the maker of") {
  Host host;
  REQUIRE(host.share(maker, 1));
  hold(host, one, 1, 2);
  hold(host, other, 5);  // of a maker that has ended
  hold(host, one, 5);
  host.shares.all_taken_over();
  CHECK(host.pays == Pays{{one, 1000}});
  host.let_go(one, 5);
  CHECK(host.pays == Pays{{one, 0}, {other, 1000}});
  host.let_go(other, 5);
  host.let_go(one, 1);
  host.unshare(maker, 1);  // which `one` still has, once
  CHECK(host.pays == Pays{{one, 1000}, {other, 0}});
  host.let_go(one, 1);
  CHECK(host.pays == Pays{{one, 0}, {other, 0}});
}

TEST_CASE("shares: memory that was shared on is taken over as the same memory") {
  Host host;
  REQUIRE(host.share(maker, 1));
  CHECK_FALSE(host.shares.lent(one, key_of(1)));
  hold(host, one, 1);
  CHECK(host.shares.lent(one, key_of(1)));
  REQUIRE(host.share(one, 2, 1));
  CHECK(host.shares.shared(key_of(2)));
  hold(host, other, 2);
  host.shares.all_taken_over();
  host.shares.remove_all(maker);
  CHECK(host.pays == Pays{{one, 1000}});
  host.shares.remove_all(one);
  CHECK(host.pays[other] == 1000);
}

TEST_CASE("shares: what a worker that is taken over cannot hold") {
  Host host;
  REQUIRE(host.share(maker, 1, 0, -1));  // an event
  CHECK_THROWS_AS(hold(host, one, 1), ProtocolError);
  CHECK_THROWS_AS(hold(host, one, 5, 0), ProtocolError);
  CHECK_THROWS_AS(hold(host, one, 5, 1u << 20), ProtocolError);
  CHECK_THROWS_AS(hold(host, one, 5, 1, -1), ProtocolError);
  CHECK_THROWS_AS(hold(host, one, 5, 1, 1000), ProtocolError);
  hold(host, one, 5);
  CHECK_THROWS_AS(hold(host, one, 5), ProtocolError);
}
