// Which request of a pool is served next, and by which hosts.

#include <catch2/catch.hpp>

#include <fmt/format.h>

#include "server/pool/placement.h"

namespace fargpu::server::pool {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

// A pool whose registry is this object: what is decided takes place at once.
struct Pool {
  void host(const std::string& name, unsigned devices, std::map<std::string, HostRecord::Tenant> tenants = {},
            std::uint32_t sessions = 100) {
    HostRecord record;
    record.identity = name;
    record.address = name + ":1";
    RoomRecord room;
    room.sessions = record.sessions_max = sessions;
    room.seen = revision;
    for (unsigned i = 0; i < devices; ++i) {
      record.devices.push_back({fmt::format("GPU-{}-{}", name, i), "model", 80 * gib});
      room.devices.push_back({80 * gib, 100, true});
    }
    record.names_tenants = !tenants.empty();
    record.tenants = std::move(tenants);
    placement.set_host(name, record, ++lifetime);
    placement.set_room(name, room);
    rooms[name] = room;
  }
  RequestRecord wish(std::uint32_t gpus, std::uint32_t percent = 100) const {
    RequestRecord record;
    record.front = "a";
    record.tenant = "t";
    record.job = std::string(32, '1');
    record.gpus = gpus;
    record.compute_percent = percent;
    record.waits = true;
    return record;
  }
  std::string ask(RequestRecord record) {
    std::string id = fmt::format("r{}", ++requests);
    placement.set_request(id, std::move(record), ++revision, now);
    return id;
  }
  // By id: "a:1,b:2", or the text of a refusal.
  std::map<std::string, std::string> round(std::size_t most = 42) {
    std::map<std::string, std::string> result;
    ++revision;
    for (const Placement::Decision& decision : placement.decide(most, now)) {
      placement.erase_request(decision.id);
      std::string& text = result[decision.id];
      if (decision.answer.parts.empty()) text = "refused: " + decision.answer.text;
      for (const Part& part : decision.answer.parts) {
        text += fmt::format("{}{}:{}", text.empty() ? "" : ",", part.host, part.gpus);
        LeaseRecord lease = decision.lease;
        lease.gpus = part.gpus;
        placement.set_lease(part.host, decision.id, lease, revision);
      }
    }
    return result;
  }
  using Results = std::map<std::string, std::string>;

  Placement placement;
  std::map<std::string, RoomRecord> rooms;
  Placement::Clock::time_point now{};
  std::int64_t revision = 1, lifetime = 0;
  unsigned requests = 0;
};

TEST_CASE("one host before several, and the least loaded before others") {
  Pool pool;
  pool.host("a", 2);
  pool.host("b", 4);
  RequestRecord three = pool.wish(3);
  three.hosts = 2;
  const auto first = pool.ask(three);
  CHECK(pool.round() == Pool::Results{{first, "b:3"}});
  const auto second = pool.ask(pool.wish(1));
  CHECK(pool.round() == Pool::Results{{second, "a:1"}});
  RequestRecord two = pool.wish(2);
  two.hosts = 2;
  const auto third = pool.ask(two);
  CHECK(pool.round() == Pool::Results{{third, "b:1,a:1"}});
}

TEST_CASE("a host that this client may not reach is taken after all others") {
  Pool pool;
  pool.host("a", 2);
  pool.host("b", 4);
  RequestRecord wish = pool.wish(1);
  wish.doubted = {"b"};
  for (const char* const at : {"a:1", "a:1", "b:1"}) {
    const auto id = pool.ask(wish);
    CHECK(pool.round() == Pool::Results{{id, at}});
  }
}

TEST_CASE("hosts that this client may not reach serve it where the others do not suffice") {
  Pool pool;
  pool.host("a", 5);
  pool.host("b", 2);
  pool.host("c", 2);
  RequestRecord wish = pool.wish(4);
  wish.hosts = 2;
  wish.doubted = {"a"};
  const auto several = pool.ask(wish);
  CHECK(pool.round() == Pool::Results{{several, "b:2,c:2"}});
  pool.placement.erase_lease("b", several);
  pool.placement.erase_lease("c", several);
  wish.gpus = 6;
  const auto id = pool.ask(wish);
  CHECK(pool.round() == Pool::Results{{id, "a:5,b:1"}});
}

TEST_CASE("a refusal names hosts that could serve and take no new sessions") {
  Pool pool;
  pool.host("a", 1);
  pool.host("b", 2);
  RoomRecord room = pool.rooms["b"];
  room.state = RoomRecord::State::draining;
  pool.placement.set_room("b", room);
  RequestRecord wish = pool.wish(2);
  wish.waits = false;
  const auto id = pool.ask(wish);
  CHECK(pool.round()[id] ==
        "refused: 2 GPUs with 100% of compute are asked for, but the hosts of the pool have 1 GPU free that would do, "
        "and b takes no new sessions now; try later");
}

TEST_CASE("the host that was asked is preferred, or is the only one") {
  Pool pool;
  pool.host("a", 1);
  pool.host("b", 1);
  RequestRecord wish = pool.wish(1, 50);
  wish.front = "b";
  wish.prefers_front = true;
  for (const char* const at : {"b:1", "b:1", "a:1"}) {
    const auto id = pool.ask(wish);
    CHECK(pool.round() == Pool::Results{{id, at}});
  }
  wish.only_front = true;
  wish.waits = false;
  const auto id = pool.ask(wish);
  const auto results = pool.round();
  REQUIRE(results.contains(id));
  CHECK(results.at(id).find("at b alone, which was asked") != std::string::npos);
  wish.only_front = false;
  wish.avoid = {"a"};
  const auto other = pool.ask(wish);
  CHECK(pool.round().at(other).starts_with("refused"));
}

TEST_CASE("decisions of one round exclude each other") {
  Pool pool;
  pool.host("a", 3);
  pool.host("b", 2);
  std::set<std::string> asked;
  for (int i = 0; i < 9; ++i) asked.insert(pool.ask(pool.wish(1)));
  const auto results = pool.round();
  CHECK(results.size() == 5);
  CHECK(pool.round().empty());
  CHECK(pool.placement.waiting() == 4);
  CHECK(pool.placement.leases() == 5);
}

TEST_CASE("room that a host tells is what counts, with the leases that it has not seen yet") {
  Pool pool;
  pool.host("a", 2);
  const auto first = pool.ask(pool.wish(1, 60));
  CHECK(pool.round().at(first) == "a:1");
  // A word from before it saw the lease.
  pool.placement.set_room("a", pool.rooms["a"]);
  const auto second = pool.ask(pool.wish(2, 60));
  CHECK(pool.round().empty());
  // It has seen it, and something outside the pool has ended there meanwhile.
  RoomRecord room = pool.rooms["a"];
  room.seen = pool.revision;
  pool.placement.set_room("a", room);
  CHECK(pool.round().at(second) == "a:2");
}

TEST_CASE("one that waits for much is not passed by for ever") {
  Pool pool;
  pool.host("a", 2);
  pool.host("b", 1);
  const auto small = pool.ask(pool.wish(1));
  const auto results = pool.round();
  CHECK(results.at(small) == "a:1");
  const auto large = pool.ask(pool.wish(2));
  // What is free at its host is kept for it; others have the rest.
  const auto later = pool.ask(pool.wish(1)), last = pool.ask(pool.wish(1));
  CHECK(pool.round() == Pool::Results{{later, "b:1"}});
  pool.placement.erase_lease("a", small);
  CHECK(pool.round() == Pool::Results{{large, "a:2"}});
  pool.placement.erase_lease("b", later);
  CHECK(pool.round() == Pool::Results{{last, "b:1"}});
}

TEST_CASE("gangs that want each other's hosts come one after the other") {
  Pool pool;
  pool.host("a", 1);
  pool.host("b", 1);
  RequestRecord gang = pool.wish(2);
  gang.hosts = 2;
  const auto first = pool.ask(gang), second = pool.ask(gang);
  CHECK(pool.round() == Pool::Results{{first, "a:1,b:1"}});
  pool.placement.erase_lease("a", first);
  const auto small = pool.ask(pool.wish(1));
  CHECK(pool.round().empty());  // half of what the second waits for
  pool.placement.erase_lease("b", first);
  CHECK(pool.round() == Pool::Results{{second, "a:1,b:1"}});
  CHECK(pool.placement.waiting() == 1);
  pool.placement.erase_request(small);
}

TEST_CASE("all GPUs of a host, or of several") {
  Pool pool;
  pool.host("a", 2);
  pool.host("b", 3);
  const auto taken = pool.ask(pool.wish(1));
  CHECK(pool.round().size() == 1);
  const auto all = pool.ask(pool.wish(0));
  CHECK(pool.round() == Pool::Results{{all, "b:3"}});
  pool.placement.erase_lease("a", taken);
  pool.placement.erase_lease("b", all);
  RequestRecord spread = pool.wish(0);
  spread.hosts = 2;
  const auto both = pool.ask(spread);
  CHECK(pool.round() == Pool::Results{{both, "a:2,b:3"}});
}

TEST_CASE("a tenant has no more of the pool, or of a host, than it may have") {
  Pool pool;
  pool.host("a", 4, {{"t", {{0, 200, 0}, {}}}, {"u", {{}, {3}}}});
  pool.host("b", 4, {{"t", {{0, 200, 0}, {}}}, {"v", {}}});
  pool.placement.set_tenant("t", {{0, 300, 0}, 100});
  const auto first = pool.ask(pool.wish(2)), second = pool.ask(pool.wish(1)), third = pool.ask(pool.wish(1));
  const auto results = pool.round();
  CHECK(results.size() == 2);
  CHECK(results.contains(first));
  CHECK(results.contains(second));
  CHECK(results.at(first).substr(0, 1) != results.at(second).substr(0, 1));
  // Another tenant is not in the way of that, and has what it may have.
  RequestRecord other = pool.wish(2);
  other.tenant = "u";
  other.waits = false;
  const auto refused = pool.ask(other);
  CHECK(pool.round().at(refused).find("no host of the pool could ever give") != std::string::npos);
  other.gpus = 1;
  const auto on_last = pool.ask(other);
  CHECK(pool.round() == Pool::Results{{on_last, "a:1"}});
  pool.placement.erase_lease("a", first);
  pool.placement.erase_lease("b", first);
  CHECK(pool.round().contains(third));
  RequestRecord much = pool.wish(4);
  much.waits = false;
  much.hosts = 2;
  const auto never = pool.ask(much);
  CHECK(pool.round().at(never).find("more than tenant 't' may have in this pool") != std::string::npos);
}

TEST_CASE("what a tenant may not have at a host now is not kept for it") {
  Pool pool;
  pool.host("a", 4, {{"t", {{0, 200, 0}, {}}}, {"u", {}}});
  const auto first = pool.ask(pool.wish(2));
  CHECK(pool.round() == Pool::Results{{first, "a:2"}});
  const auto waiting = pool.ask(pool.wish(1));
  CHECK(pool.round().empty());
  RequestRecord other = pool.wish(2);
  other.tenant = "u";
  const auto served = pool.ask(other);
  CHECK(pool.round() == Pool::Results{{served, "a:2"}});
  pool.placement.erase_lease("a", first);
  CHECK(pool.round() == Pool::Results{{waiting, "a:1"}});
}

TEST_CASE("hosts that have gone, drain or do not suffice any more are not claimed") {
  Pool pool;
  for (const char* const name : {"a", "b", "c"}) pool.host(name, 2);
  RequestRecord small = pool.wish(1);
  small.hosts = 1;
  std::map<std::string, std::string> held;
  for (int i = 0; i < 3; ++i) pool.ask(small);
  for (const auto& [id, at] : pool.round()) held[at.substr(0, 1)] = id;
  REQUIRE(held.size() == 3);
  RequestRecord gang = pool.wish(4);
  gang.hosts = 2;
  const auto waiting = pool.ask(gang);
  CHECK(pool.round().empty());
  // Two of the hosts are claimed now. One of them drains.
  small.waits = false;
  std::string claimed, left;
  for (const char* const name : {"a", "b", "c"}) {
    RequestRecord probe = small;
    probe.front = name;
    probe.only_front = true;
    const auto id = pool.ask(probe);
    const std::string result = pool.round().at(id);
    (result.starts_with("refused") ? claimed : left) = name;
    if (!result.starts_with("refused")) pool.placement.erase_lease(name, id);
  }
  REQUIRE(!claimed.empty());
  REQUIRE(!left.empty());
  RoomRecord room = pool.rooms[claimed];
  room.state = RoomRecord::State::draining;
  pool.placement.set_room(claimed, room);
  pool.now += Placement::claim_again;
  CHECK(pool.round().empty());
  // The others are, which come free one after the other.
  for (const char* const name : {"a", "b", "c"})
    if (name != claimed) pool.placement.erase_lease(name, held[name]);
  const auto thief = pool.ask(small);
  const auto results = pool.round();
  CHECK(results.at(waiting).find(":2,") != std::string::npos);
  CHECK(results.at(thief).starts_with("refused"));
}

TEST_CASE("a tenant that was refused at once is not behind those that wait") {
  Pool pool;
  pool.host("a", 1);
  const auto first = pool.ask(pool.wish(1));
  CHECK(pool.round() == Pool::Results{{first, "a:1"}});
  RequestRecord impatient = pool.wish(1);
  impatient.waits = false;
  for (int i = 0; i < 20; ++i) {
    pool.ask(impatient);
    CHECK(pool.round().size() == 1);
  }
  const auto second = pool.ask(pool.wish(1));
  std::vector<std::string> others;
  for (int i = 0; i < 5; ++i) {
    RequestRecord other = pool.wish(1);
    other.tenant = "u";
    others.push_back(pool.ask(other));
  }
  pool.placement.erase_lease("a", first);
  CHECK(pool.round() == Pool::Results{{second, "a:1"}});
}

TEST_CASE("a tenant of little weight does not put those back that come after it") {
  Pool pool;
  pool.host("a", 1);
  pool.host("b", 1);
  pool.placement.set_tenant("little", {{}, 1});
  // The queue of one tenant waits for the host `b`.
  RequestRecord on_b = pool.wish(1);
  on_b.front = "b";
  on_b.only_front = true;
  std::vector<std::string> queue;
  for (int i = 0; i < 20; ++i) queue.push_back(pool.ask(on_b));
  CHECK(pool.round() == Pool::Results{{queue[0], "b:1"}});
  RequestRecord little = pool.wish(1);
  little.tenant = "little";
  const auto served = pool.ask(little);
  CHECK(pool.round() == Pool::Results{{served, "a:1"}});
  RequestRecord fresh = on_b;
  fresh.tenant = "fresh";
  const auto new_one = pool.ask(fresh);
  unsigned rounds = 0;
  for (std::string last = queue[0]; rounds < 5; ++rounds) {
    pool.placement.erase_lease("b", last);
    last = pool.round().begin()->first;
    if (last == new_one) break;
  }
  CHECK(rounds < 3);
}

TEST_CASE("all GPUs of a host are more than a tenant has left, not more than it may have") {
  Pool pool;
  pool.host("a", 4);
  pool.placement.set_tenant("t", {{0, 400, 2}, 100});
  const auto first = pool.ask(pool.wish(1));
  CHECK(pool.round().size() == 1);
  RequestRecord wish = pool.wish(4);
  wish.waits = false;
  pool.host("b", 4);
  const auto second = pool.ask(wish);
  const std::string text = pool.round().at(second);
  CHECK(text.find("tenant 't' has 100% of compute, 1 lease in this pool, may have 400% of compute, 2 leases") !=
        std::string::npos);
  pool.placement.erase_lease("a", first);
  // Over two hosts it has two leases, and one of three hosts would be too many.
  pool.placement.set_tenant("t", {{0, 0, 1}, 100});
  RequestRecord gang = pool.wish(6);
  gang.hosts = 2;
  gang.waits = false;
  const auto third = pool.ask(gang);
  CHECK(pool.round().at(third).find("has 0 leases in this pool, may have 1 lease") != std::string::npos);
}

TEST_CASE("of a tenant with many wishes so many are looked at in a round") {
  Pool pool;
  pool.host("a", 1);
  const auto first = pool.ask(pool.wish(1));
  CHECK(pool.round() == Pool::Results{{first, "a:1"}});
  for (std::size_t i = 0; i < 2 * Placement::wishes_max; ++i) {
    RequestRecord wish = pool.wish(1);
    wish.memory_bytes = i + 1;
    pool.ask(wish);
  }
  RequestRecord last = pool.wish(1);
  last.waits = false;
  const auto refused = pool.ask(last);
  CHECK(pool.round().at(refused).find("other wishes in the queue of this pool") != std::string::npos);
  RequestRecord other = pool.wish(1);
  other.tenant = "u";
  other.waits = false;
  const auto others = pool.ask(other);
  CHECK(pool.round().at(others).find("have 0 GPUs free") != std::string::npos);
  pool.placement.erase_lease("a", first);
  CHECK(pool.round().size() == 1);
}

TEST_CASE("a tenant with limits says how much it wants") {
  Pool pool;
  pool.host("a", 1);
  pool.placement.set_tenant("t", {{8 * gib, 0, 0}, 100});
  RequestRecord wish = pool.wish(1);
  wish.waits = false;
  const auto first = pool.ask(wish);
  CHECK(pool.round().at(first).find("with -m or FARGPU_MEM") != std::string::npos);
  wish.memory_bytes = 8 * gib;
  const auto second = pool.ask(wish);
  CHECK(pool.round().at(second) == "a:1");
}

TEST_CASE("tenants are served by their weights, and each tenant's requests in their order") {
  Pool pool;
  pool.host("a", 1, {}, 1000);
  pool.placement.set_tenant("heavy", {{}, 300});
  pool.placement.set_tenant("light", {{}, 100});
  std::map<std::string, std::string> owner;
  std::vector<std::string> heavies;
  for (int i = 0; i < 60; ++i)
    for (const char* const tenant : {"light", "heavy"}) {
      RequestRecord wish = pool.wish(1);
      wish.tenant = tenant;
      const auto id = pool.ask(wish);
      owner[id] = tenant;
      if (wish.tenant == "heavy") heavies.push_back(id);
    }
  std::map<std::string, unsigned> served;
  std::vector<std::string> order;
  for (int i = 0; i < 40; ++i) {
    const auto results = pool.round();
    REQUIRE(results.size() == 1);
    const std::string id = results.begin()->first;
    ++served[owner[id]];
    if (owner[id] == "heavy") order.push_back(id);
    pool.placement.erase_lease("a", id);
  }
  CHECK(served["heavy"] == 30);
  CHECK(served["light"] == 10);
  heavies.resize(order.size());
  CHECK(order == heavies);
}

TEST_CASE("a tenant that comes anew is not behind all that others have asked for") {
  Pool pool;
  pool.host("a", 1);
  for (int i = 0; i < 500; ++i) pool.ask(pool.wish(1));
  for (int i = 0; i < 5; ++i) pool.placement.erase_lease("a", pool.round().begin()->first);
  RequestRecord wish = pool.wish(1);
  wish.tenant = "new";
  const auto id = pool.ask(wish);
  bool served = false;
  for (int i = 0; i < 2 && !served; ++i) {
    const auto results = pool.round();
    served = results.contains(id);
    pool.placement.erase_lease("a", results.begin()->first);
  }
  CHECK(served);
}

TEST_CASE("what no host could ever give is refused, after the time in which one may come back") {
  Pool pool;
  pool.host("a", 1);
  const auto id = pool.ask(pool.wish(2));
  CHECK(pool.round().empty());
  pool.now += Placement::hopeless_max;
  CHECK(pool.round().at(id).find("no host of the pool could ever give") != std::string::npos);
  const auto other = pool.ask(pool.wish(2));
  CHECK(pool.round().empty());
  pool.host("b", 2);
  CHECK(pool.round() == Pool::Results{{other, "b:2"}});
}

TEST_CASE("a host that is away may be back") {
  Pool pool;
  pool.host("a", 1);
  HostRecord large;
  large.identity = "b";
  large.address = "b:1";
  large.devices = {{"GPU-b-0", "model", 80 * gib}, {"GPU-b-1", "model", 80 * gib}};
  pool.placement.set_known("b", large);
  CHECK(pool.placement.hosts() == 1);
  const auto waits = pool.ask(pool.wish(2));
  RequestRecord wish = pool.wish(2);
  wish.waits = false;
  const auto asks = pool.ask(wish);
  pool.now += 20s;
  CHECK(pool.round() == Pool::Results{{asks,
                                       "refused: 2 GPUs with 100% of compute are asked for, which b could give: it was "
                                       "in the pool lately, and is away now; try later"}});
  // One that this client does not reach is of no use to it, there or not.
  wish.unreached = {"b"};
  CHECK(pool.round().empty());
  const auto in_vain = pool.ask(wish);
  CHECK(pool.round().at(in_vain).find("no host of the pool could ever give") != std::string::npos);
  pool.placement.erase_known("b");
  CHECK(pool.round().at(waits).find("no host of the pool could ever give") != std::string::npos);
  CHECK(pool.placement.hosts() == 1);
}

TEST_CASE("a host that its client does not reach is passed over") {
  Pool pool;
  pool.host("a", 1);
  pool.host("b", 1);
  RequestRecord wish = pool.wish(1, 50);
  wish.unreached = {"a"};
  const auto first = pool.ask(wish), second = pool.ask(wish);
  CHECK(pool.round() == Pool::Results{{first, "b:1"}, {second, "b:1"}});
  // The others may have room later, so it waits; none ever could, so it does not.
  const auto third = pool.ask(wish);
  CHECK(pool.round().empty());
  wish.unreached = {"a", "b"};
  const auto fourth = pool.ask(wish);
  CHECK(pool.round().contains(fourth));
  pool.placement.erase_request(third);
}

TEST_CASE("the limit of one host is named where it is in the way") {
  Pool pool;
  HostRecord::Tenant lab;
  lab.limits.memory_bytes = 40 * gib;
  pool.host("a", 1, {{"t", lab}});
  RequestRecord wish = pool.wish(1, 0);
  wish.memory_bytes = 30 * gib;
  wish.waits = false;
  const auto first = pool.ask(wish);
  CHECK(pool.round() == Pool::Results{{first, "a:1"}});
  const auto second = pool.ask(wish);
  CHECK(pool.round().at(second) ==
        "refused: 1 GPU with 30.0 GiB is asked for, but the hosts of the pool have 0 GPUs free that would do; by the "
        "settings of host a, tenant 't' may have 40.0 GiB there, and has 30.0 GiB; try later");
  wish.memory_bytes = 60 * gib;
  const auto never = pool.ask(wish);
  CHECK(pool.round().at(never) ==
        "refused: no host of the pool could ever give 1 GPU with 60.0 GiB; by the settings of host a, tenant 't' may "
        "have 40.0 GiB there; ask for less, or for GPUs of more hosts");
}

TEST_CASE("hosts that drain, stop, are gone or are doubted get nothing") {
  Pool pool;
  pool.host("a", 1);
  pool.host("b", 1);
  SECTION("drain") {
    RoomRecord room = pool.rooms["a"];
    room.state = RoomRecord::State::draining;
    pool.placement.set_room("a", room);
  }
  SECTION("record gone") { pool.placement.erase_host("a"); }
  SECTION("room gone") { pool.placement.erase_room("a"); }
  SECTION("doubted") { pool.placement.doubt("a"); }
  SECTION("no session left") {
    RoomRecord room = pool.rooms["a"];
    room.sessions = 0;
    pool.placement.set_room("a", room);
  }
  const auto first = pool.ask(pool.wish(1)), second = pool.ask(pool.wish(1));
  CHECK(pool.round() == Pool::Results{{first, "b:1"}});
  pool.host("a", 1);
  CHECK(pool.round() == Pool::Results{{second, "a:1"}});
}

TEST_CASE("rounds of a large pool with a long queue take little time") {
  Pool pool;
  for (int i = 0; i < 1000; ++i) pool.host(fmt::format("h{:03}", i), 8);
  for (int i = 0; i < 8000; ++i) pool.ask(pool.wish(1));
  while (!pool.round().empty()) {}
  REQUIRE(pool.placement.leases() == 8000);
  for (int i = 0; i < 3000; ++i) {
    RequestRecord wish = pool.wish(1 + i % 16, 50 + i % 7);
    wish.hosts = 2;
    wish.tenant = fmt::format("t{}", i % 50);
    pool.ask(wish);
  }
  pool.round();  // chooses what is claimed
  const auto begin = std::chrono::steady_clock::now();
  constexpr int rounds = 5;
  for (int i = 0; i < rounds; ++i) CHECK(pool.round().empty());
  const auto each = (std::chrono::steady_clock::now() - begin) / rounds;
  CHECK(each < 2s);  // on a busy machine, with a sanitizer
}

}  // namespace
}  // namespace fargpu::server::pool
