// Members of a pool over a registry in memory: each host keeps what was placed at it, and nothing is promised twice.

#include <catch2/catch.hpp>

#include <fmt/format.h>

#include "server/pool/memory_registry.h"
#include "simulated_host.h"
#include "waits.h"

namespace fargpu::server::pool {
namespace {

using namespace std::chrono_literals;
using test::comes;
using test::go_on;

using test::SimulatedHost;

// With a way of its own to the store.
struct Host {
  Host(asio::io_context& io, const std::shared_ptr<MemoryStore>& store, SimulatedHost::Options options)
      : registry(io, store), host(io, registry, std::move(options)), member(host.member()) {}
  unsigned taken() const { return host.devices_taken(); }
  std::shared_ptr<Request> ask(std::uint32_t gpus, std::uint32_t hosts = 1, bool waits = true) {
    RequestRecord wish;
    wish.tenant = "t";
    wish.job = std::string(32, 'a');
    wish.gpus = gpus;
    wish.hosts = hosts;
    wish.compute_percent = 100;
    wish.waits = waits;
    return member.request(wish);
  }

  MemoryRegistry registry;
  SimulatedHost host;
  Member& member;
};

std::string parts(const std::shared_ptr<Request>& request) {
  if (!request->answer()) return "waits";
  if (const auto* const refusal = std::get_if<Refusal>(&*request->answer())) return "refused: " + refusal->text;
  std::string text;
  for (const Part& part : std::get<std::vector<Part>>(*request->answer()))
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", part.host, part.gpus);
  return text;
}

struct Pool {
  explicit Pool(std::vector<unsigned> sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) add(fmt::format("h{}", i + 1), sizes[i]);
    REQUIRE(comes(io, [&] { return whole(hosts.size()) && placers() == 1; }));
  }
  Host& add(const std::string& name, unsigned devices = 1) {
    return *(hosts[name] = std::make_unique<Host>(io, store, SimulatedHost::Options{.name = name, .devices = devices}));
  }
  Host& operator[](const std::string& name) { return *hosts.at(name); }
  unsigned placers() const {
    return static_cast<unsigned>(
        std::count_if(hosts.begin(), hosts.end(), [](const auto& host) { return host.second->member.is_placer(); }));
  }
  bool whole(std::size_t number) const {
    for (const auto& [name, host] : hosts)
      if (!host->member.in_touch()) return false;
      else if (const auto* const counts = host->member.counts(); counts && counts->hosts != number) return false;
    return true;
  }
  Host& placer() {
    for (const auto& [name, host] : hosts)
      if (host->member.is_placer()) return *host;
    throw std::runtime_error("no placer");
  }
  Host& other_than(const Host& one) {
    for (const auto& [name, host] : hosts)
      if (host.get() != &one) return *host;
    throw std::runtime_error("no other");
  }
  std::vector<std::string> keys(const std::string& part) {
    std::vector<std::string> found;
    for (const auto& [key, entry] : store->copy().entries)
      if (key.find(part) != std::string::npos) found.push_back(key);
    return found;
  }
  bool answered(const std::shared_ptr<Request>& request) {
    return comes(io, [&] { return request->answer().has_value(); });
  }

  asio::io_context io;
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::map<std::string, std::unique_ptr<Host>> hosts;
};

TEST_CASE("a lease is its host's before its answer is the client's") {
  Pool pool({1, 2});
  bool kept = false;
  const auto request = pool["h1"].ask(2);
  request->answered = [&] { kept = pool["h2"].host.leases().contains(request->id()) || kept; };
  REQUIRE(pool.answered(request));
  CHECK(parts(request) == "h2:2");
  REQUIRE(comes(pool.io, [&] { return pool["h2"].host.leases().contains(request->id()); }));
  CHECK(pool["h2"].host.leases().at(request->id()).fence > 0);
  CHECK(comes(pool.io, [&] { return pool.keys("/answer/").empty() && pool.keys("/requests/").empty(); }));
  const auto own = pool["h1"].ask(1);
  own->answered = [&] { kept = pool["h1"].host.leases().contains(own->id()); };
  REQUIRE(pool.answered(own));
  CHECK(kept);
  pool["h2"].host.end(request->id());
  CHECK(comes(pool.io, [&] { return pool.keys("/lease/").size() == 1; }));
}

TEST_CASE("a request that is taken back is served no more") {
  Pool pool({1});
  const auto first = pool["h1"].ask(1);
  REQUIRE(pool.answered(first));
  {
    const auto second = pool["h1"].ask(1);
    REQUIRE(comes(pool.io, [&] { return pool.keys("/requests/").size() == 1; }));
  }
  CHECK(comes(pool.io, [&] { return pool.keys("/requests/").empty(); }));
  pool["h1"].host.end(first->id());
  go_on(pool.io, 50ms);
  CHECK(pool["h1"].host.leases().empty());
}

TEST_CASE("a host that leaves to its next broker takes back what waits, and nothing else") {
  Pool pool({1});
  const auto first = pool["h1"].ask(1);
  REQUIRE(pool.answered(first));
  const auto second = pool["h1"].ask(1);
  REQUIRE(comes(pool.io, [&] { return pool.keys("/requests/").size() == 1; }));
  const auto third = pool["h1"].ask(1);  // which is about to be put
  std::optional<std::size_t> left;
  pool["h1"].member.withdraw_requests([&] { left = pool.keys("/requests/").size(); });
  REQUIRE(comes(pool.io, [&] { return left.has_value(); }));
  CHECK(*left == 0);
  const auto fourth = pool["h1"].ask(1);
  go_on(pool.io, 50ms);
  CHECK(pool.keys("/requests/").empty());
  CHECK(pool.keys("/lease/").size() == 1);
  CHECK(pool.keys("/hosts/").size() == 1);
}

TEST_CASE("a client that goes before its answer leaves no lease") {
  Pool pool({1, 1});
  Host& front = pool["h1"];
  pool.placer().registry.delay(20ms);
  auto request = front.ask(2, 2);
  REQUIRE(comes(pool.io, [&] { return pool.keys("/requests/").size() == 1; }));
  go_on(pool.io, 10ms);
  request.reset();
  CHECK(comes(pool.io, [&] {
    return pool.keys("/requests/").empty() && pool.keys("/lease/").empty() && pool.keys("/answer/").empty();
  }));
  CHECK(comes(pool.io, [&] { return pool["h1"].host.leases().empty() && pool["h2"].host.leases().empty(); }));
}

TEST_CASE("a host that has no room after all says so by taking the lease away") {
  Pool pool({1, 1});
  pool["h2"].host.refuse_all();
  const auto request = pool["h1"].ask(2, 2);
  REQUIRE(pool.answered(request));
  CHECK(comes(pool.io, [&] { return pool.keys("/at/h2/lease/").empty(); }));
}

TEST_CASE(
    "another member places when the placer is cut off, and nothing that the first one still commits takes place") {
  Pool pool({2, 2, 2});
  Host& first = pool.placer();
  const auto lease = pool.other_than(first).ask(1);
  REQUIRE(pool.answered(lease));
  for (const auto& [name, host] : pool.hosts) host->host.clients_come();
  // The store says that its lifetime is over; it still believes to be the placer.
  std::int64_t bound = 0;
  for (const auto& [key, entry] : pool.store->copy().entries)
    if (key.ends_with("/placer")) bound = entry.lifetime;
  REQUIRE(bound != 0);
  first.registry.delay(30ms);
  pool.store->end_lifetime(bound);
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(pool.other_than(first).ask(1));
  REQUIRE(comes(pool.io, [&] { return pool.placers() == 1 && pool.whole(3); }));
  const auto served = [&] {
    return std::count_if(requests.begin(), requests.end(), [](const auto& one) { return one->answer().has_value(); });
  };
  CHECK(comes(pool.io, [&] { return served() == 5; }));
  go_on(pool.io, 100ms);
  CHECK(served() == 5);  // six devices, one lease before
  for (const auto& [name, host] : pool.hosts) CHECK(host->taken() == 2);
}

TEST_CASE("a host that was away enters its leases again before anything is placed at it") {
  Pool pool({1, 1});
  Host& away = pool.other_than(pool.placer());
  const auto lease = away.ask(1);
  REQUIRE(pool.answered(lease));
  const auto second = away.ask(1);
  REQUIRE(pool.answered(second));
  away.registry.cut_off(true);
  REQUIRE(comes(
      pool.io, [&] { return !away.member.in_touch(); }, 15s));
  std::int64_t bound = 0;
  for (const auto& [key, entry] : pool.store->copy().entries)
    if (key.ends_with("hosts/" + away.host.name())) bound = entry.lifetime;
  pool.store->end_lifetime(bound);
  CHECK(pool.keys("/at/" + away.host.name() + "/").empty());
  const auto waiting = pool.placer().ask(1);
  go_on(pool.io, 50ms);
  CHECK(parts(waiting) == "waits");
  away.registry.cut_off(false);
  REQUIRE(comes(pool.io, [&] { return away.member.in_touch(); }));
  CHECK(pool.keys("/at/" + away.host.name() + "/lease/").size() == 1);
  go_on(pool.io, 50ms);
  CHECK(parts(waiting) == "waits");
  CHECK(away.host.told("pool out of reach") == 1);
  const std::string held = away.host.leases().begin()->first;
  away.host.end(held);
  REQUIRE(pool.answered(waiting));
  CHECK(parts(waiting) == away.host.name() + ":1");
}

TEST_CASE("an outage does not lose what waits") {
  Pool pool({1});
  const auto first = pool["h1"].ask(1);
  REQUIRE(pool.answered(first));
  const auto waiting = pool["h1"].ask(1);
  const auto refused = pool["h1"].ask(1, 1, false);
  REQUIRE(pool.answered(refused));
  CHECK(parts(refused).starts_with("refused"));
  pool["h1"].registry.cut_off(true);
  REQUIRE(comes(
      pool.io, [&] { return !pool["h1"].member.in_touch(); }, 15s));
  CHECK_FALSE(pool["h1"].member.trouble().empty());
  const auto at_once = pool["h1"].ask(1, 1, false);
  REQUIRE(pool.answered(at_once));
  CHECK(parts(at_once).find("of no use now") != std::string::npos);
  pool["h1"].host.end(first->id());
  pool["h1"].registry.cut_off(false);
  REQUIRE(pool.answered(waiting));
  CHECK(parts(waiting) == "h1:1");
}

TEST_CASE("a transaction whose answer is lost is not made twice") {
  Pool pool({2, 2});
  Host& front = pool.other_than(pool.placer());
  pool.placer().registry.lose_answers(1);
  const auto request = front.ask(1), other = front.ask(1);
  REQUIRE(pool.answered(request));
  REQUIRE(pool.answered(other));
  CHECK(comes(pool.io, [&] { return pool["h1"].taken() + pool["h2"].taken() == 2; }));
  go_on(pool.io, 50ms);
  CHECK(pool["h1"].taken() + pool["h2"].taken() == 2);
}

TEST_CASE("limits of a tenant are set once, also where the answer is lost") {
  Pool pool({1});
  const std::int64_t before = pool.store->revision();
  const auto set = [&](std::optional<TenantRecord> limits) -> asio::awaitable<int> {
    co_await pool["h1"].member.set_tenant("t", limits);
    co_return 0;
  };
  for (const auto& limits : {std::optional(TenantRecord{{0, 0, 4}, 50}), std::optional<TenantRecord>()}) {
    pool["h1"].registry.lose_answers(1);
    CHECK_NOTHROW(test::run(pool.io, set(limits)));
    CHECK(test::run(pool.io, pool["h1"].member.view())->tenants.contains("t") == limits.has_value());
  }
  CHECK(pool.store->revision() == before + 2);
  CHECK(pool["h1"].member.in_touch());
}

TEST_CASE("two hosts of one name: the second waits until the first has gone") {
  Pool pool({1});
  Host second(pool.io, pool.store, {.name = "h1", .identity = "another"});
  REQUIRE(
      comes(pool.io, [&] { return !second.member.trouble().empty() && second.host.told("pool out of reach") > 0; }));
  CHECK(second.member.trouble().find("another host is a member under the name 'h1'") != std::string::npos);
  CHECK_FALSE(second.member.in_touch());
  bool left = false;
  pool["h1"].member.stop([&] { left = true; });
  REQUIRE(comes(pool.io, [&] { return left; }));
  CHECK(comes(
      pool.io, [&] { return second.member.in_touch(); }, 15s));
}

TEST_CASE("the next broker of a host takes over its name and its leases") {
  Pool pool({1, 1});
  Host& other = pool.other_than(pool["h1"]);
  std::vector<std::shared_ptr<Request>> held{other.ask(1), other.ask(1)};
  for (const auto& one : held) REQUIRE(pool.answered(one));
  const auto leases = pool["h1"].host.leases();
  REQUIRE(leases.size() == 1);
  // It dies: nothing is said, and its lifetime lasts for a while.
  pool["h1"].registry.cut_off(true);
  pool.hosts["h1"].reset();
  pool.hosts["h1"] =
      std::make_unique<Host>(pool.io, pool.store, SimulatedHost::Options{.name = "h1", .leases = leases});
  REQUIRE(comes(
      pool.io, [&] { return pool["h1"].member.in_touch() && pool.placers() == 1 && pool.whole(2); }, 15s));
  const auto waiting = other.ask(1);
  go_on(pool.io, 50ms);
  CHECK(parts(waiting) == "waits");
  pool["h1"].host.end(leases.begin()->first);
  REQUIRE(pool.answered(waiting));
  CHECK(parts(waiting) == "h1:1");
}

TEST_CASE("a host that comes back with other devices has nothing that these cannot give") {
  Pool pool({1});  // which places
  pool.add("h2", 3);
  REQUIRE(comes(pool.io, [&] { return pool.whole(2); }));
  // It stops with its machine, and the pool has not noticed yet.
  pool["h2"].registry.cut_off(true);
  pool.hosts["h2"].reset();
  const auto placed = pool["h1"].ask(3);
  REQUIRE(comes(
      pool.io, [&] { return placed->answer().has_value(); }, 15s));
  CHECK(parts(placed) == "h2:3");
  const unsigned devices = GENERATE(2u, 4u);
  CAPTURE(devices);
  pool.hosts["h2"] =
      std::make_unique<Host>(pool.io, pool.store, SimulatedHost::Options{.name = "h2", .devices = devices});
  REQUIRE(comes(
      pool.io, [&] { return pool["h2"].member.in_touch() && pool.placers() == 1 && pool.whole(2); }, 15s));
  // Its client comes for the lease, or finds none and asks again.
  CHECK(pool["h2"].taken() == (devices >= 3 ? 3 : 0));
  CHECK(comes(pool.io, [&] { return pool.keys("/at/h2/lease/").size() == pool["h2"].host.leases().size(); }));
  for (const auto& [id, lease] : std::map(pool["h2"].host.leases())) pool["h2"].host.end(id);
  const auto all = pool["h1"].ask(devices), more = pool["h1"].ask(devices + 1);
  REQUIRE(pool.answered(all));
  CHECK(parts(all) == fmt::format("h2:{}", devices));
  go_on(pool.io, 50ms);
  CHECK_FALSE(parts(more).starts_with("h2"));
}

TEST_CASE("a store that was restored from a copy: hosts join anew, and what they hold is counted") {
  Pool pool({1, 1});
  const auto copy = pool.store->copy();
  std::vector<std::shared_ptr<Request>> held{pool["h1"].ask(1), pool["h1"].ask(1)};
  for (const auto& one : held) REQUIRE(pool.answered(one));
  REQUIRE(comes(pool.io, [&] { return pool["h1"].taken() + pool["h2"].taken() == 2; }));
  pool.store->restore(copy, /*renames=*/true);
  for (const char* const name : {"h1", "h2"}) pool[name].registry.cut_off(true);
  REQUIRE(comes(
      pool.io, [&] { return !pool["h1"].member.in_touch() && !pool["h2"].member.in_touch(); }, 15s));
  for (const char* const name : {"h1", "h2"}) pool[name].registry.cut_off(false);
  REQUIRE(comes(
      pool.io, [&] { return pool["h1"].member.in_touch() && pool["h2"].member.in_touch(); }, 30s));
  CHECK(comes(pool.io, [&] { return pool.keys("/lease/").size() == 2; }));
  const auto waiting = pool["h1"].ask(1);
  go_on(pool.io, 100ms);
  CHECK(parts(waiting) == "waits");
}

TEST_CASE("what a store of the past has of a host that holds nothing is not taken for new") {
  Pool pool({1, 1});
  const auto request = pool["h1"].ask(2, 2);
  REQUIRE(pool.answered(request));
  REQUIRE(comes(pool.io, [&] { return pool["h1"].taken() == 1 && pool["h2"].taken() == 1; }));
  const auto copy = pool.store->copy();
  for (const char* const name : {"h1", "h2"}) pool[name].host.end(request->id());
  REQUIRE(comes(pool.io, [&] { return pool.keys("/lease/").empty(); }));
  pool.store->restore(copy, /*renames=*/true);
  REQUIRE(pool.keys("/lease/").size() == 2);
  CHECK(comes(
      pool.io, [&] { return pool.keys("/lease/").empty() && pool.whole(2) && pool.placers() == 1; }, 30s));
  CHECK(pool["h1"].taken() + pool["h2"].taken() == 0);
}

TEST_CASE("a host whose stay has failed does not keep its lifetime for ever") {
  Pool pool({1, 1});
  Host& away = pool.other_than(pool.placer());
  const std::size_t before = pool.store->lifetimes().size();
  CHECK(before == 4);
  // It joins anew: two lifetimes of each host last, of which one is that of what the pool remembers.
  away.registry.fail(RegistryError::Kind::compacted, 1);
  away.host.member().changed();
  const auto request = away.ask(1);
  REQUIRE(pool.answered(request));
  REQUIRE(comes(
      pool.io, [&] { return away.host.told("joined pool") == 2 && pool.store->lifetimes().size() == 4; }, 15s));
  CHECK(pool.whole(2));
  // It cannot: after a while the pool counts it no more.
  away.registry.fail(RegistryError::Kind::full, 1000);
  away.ask(1);
  CHECK(comes(
      pool.io, [&] { return pool.store->lifetimes().size() == 3; }, 25s));
  CHECK(pool.keys("/hosts/").size() == 1);
  CHECK(pool.keys("/known/").size() == 2);
}

TEST_CASE("a host that is away is remembered, and one that is drained or has left is not") {
  Pool pool({1, 2});
  const auto known = [&](std::size_t number) {
    return comes(pool.io, [&] { return pool.keys("/known/").size() == number; });
  };
  REQUIRE(known(2));
  Host& away = pool["h2"];
  away.host.drain(true);
  CHECK(known(1));
  away.host.drain(false);
  REQUIRE(known(2));
  // It dies: what is bound to its lifetime goes.
  away.registry.cut_off(true);
  for (const auto& [key, entry] : pool.store->copy().entries)
    if (key.ends_with("/hosts/h2")) pool.store->end_lifetime(entry.lifetime);
  REQUIRE(comes(
      pool.io,
      [&] {
        const auto* const counts = pool["h1"].member.counts();
        return counts && counts->hosts == 1;
      },
      15s));
  const auto request = pool["h1"].ask(2, 1, /*waits=*/false);
  REQUIRE(pool.answered(request));
  CHECK(
      parts(request) ==
      "refused: 2 GPUs with 100% of compute are asked for, which h2 could give: it was in the pool lately, and is away "
      "now; try later");
  CHECK(std::get<Refusal>(*request->answer()).may_change);
}

TEST_CASE("a host that leaves in good order is not remembered") {
  Pool pool({1, 2});
  REQUIRE(comes(pool.io, [&] { return pool.keys("/known/").size() == 2; }));
  bool left = false;
  pool["h2"].member.stop([&] { left = true; });
  REQUIRE(comes(pool.io, [&] { return left; }));
  CHECK(pool.keys("/known/").size() == 1);
}

TEST_CASE("leases that a client has given up end at once") {
  Pool pool({1, 1});
  const auto request = pool["h1"].ask(2, 2);
  REQUIRE(pool.answered(request));
  REQUIRE(comes(pool.io, [&] { return pool["h2"].taken() == 1; }));
  pool["h1"].member.given_up(request->id(), {"h1", "h2"});
  CHECK(comes(pool.io, [&] { return pool["h1"].taken() + pool["h2"].taken() == 0; }));
}

TEST_CASE("hosts that live are not given up with one that has died") {
  Pool pool({1, 1, 1});
  Host& placer = pool.placer();
  Host& dies = pool.other_than(placer);
  // The placer does not hear for a while that its lifetime has ended.
  std::int64_t bound = 0;
  for (const auto& [key, entry] : pool.store->copy().entries)
    if (key.ends_with("hosts/" + dies.host.name())) bound = entry.lifetime;
  REQUIRE(bound != 0);
  dies.registry.cut_off(true);
  placer.registry.delay(20ms);
  pool.store->end_lifetime(bound);
  const auto gang = placer.ask(3, 3), pair = placer.ask(2, 2);
  REQUIRE(pool.answered(pair));
  CHECK(parts(pair).find(dies.host.name()) == std::string::npos);
  placer.registry.delay(0ms);
  CHECK(parts(gang) == "waits");
  for (const auto& [name, host] : pool.hosts)
    if (!host->host.leases().empty()) host->host.end(pair->id());
  dies.registry.cut_off(false);
  REQUIRE(comes(
      pool.io, [&] { return gang->answer().has_value(); }, 15s));
  CHECK(std::get<std::vector<Part>>(*gang->answer()).size() == 3);
}

TEST_CASE("many who look at the pool at once read it once") {
  Pool pool({1});
  const auto reads = [&] { return pool["h1"].registry.reads(); };
  const auto before = reads();
  std::vector<std::shared_ptr<const PoolView>> views;
  for (int i = 0; i < 20; ++i)
    asio::co_spawn(
        pool.io, [&]() -> asio::awaitable<void> { views.push_back(co_await pool["h1"].member.view()); },
        asio::detached);
  REQUIRE(comes(pool.io, [&] { return views.size() == 20; }));
  CHECK(reads() == before + 1);
  for (const auto& view : views) CHECK(view->hosts.size() == 1);
}

TEST_CASE("a host with more to tell than a record takes says so and is no member") {
  asio::io_context io;
  const auto store = std::make_shared<MemoryStore>();
  Host host(io, store, {.name = "h1", .tenants = 2000});
  REQUIRE(comes(io, [&] { return host.member.trouble().find("its settings name 2000 tenants") != std::string::npos; }));
  CHECK_FALSE(host.member.in_touch());
}

TEST_CASE("the room that a host tells counts what it has entered itself") {
  Pool pool({2});
  Host& host = pool["h1"];
  LeaseRecord lease;
  lease.tenant = "t";
  lease.job = std::string(32, 'b');
  lease.gpus = 1;
  lease.compute_percent = 100;
  host.host.give(std::string(32, 'b'), lease);
  REQUIRE(comes(pool.io, [&] { return pool.keys("/lease/").size() == 1; }));
  const auto seen = [&] {
    std::int64_t seen = 0;
    for (const auto& [key, entry] : pool.store->copy().entries)
      if (key.find("/rooms/") != std::string::npos) seen = read<RoomRecord>(entry.value)->seen;
    return seen;
  };
  std::int64_t created = 0;
  for (const auto& [key, entry] : pool.store->copy().entries)
    if (key.find("/lease/") != std::string::npos) created = entry.created;
  CHECK(comes(pool.io, [&] { return seen() >= created; }));
  const auto request = host.ask(1);
  REQUIRE(pool.answered(request));
  CHECK(parts(request) == "h1:1");
}

TEST_CASE("records of a member that lies are left out") {
  Pool pool({1});
  MemoryRegistry liar(pool.io, pool.store);
  const Keys keys("p");
  const auto put = [&](const std::string& key, const std::string& value) {
    Transaction transaction;
    transaction.put(key, value, 0);
    test::run(pool.io, liar.commit(transaction));
  };
  put(keys.host("h9"), "{\"identity\":\"x\"");
  put(keys.room("h9"), "[]");
  put(keys.room("h1/x"), "{}");
  put(keys.request("r"), std::string(100'000, '{'));
  put(keys.lease("h1", "x"), "{\"gpus\":-1}");
  put(keys.tenant("t"), "nothing");
  put(keys.root() + "what", "is this");
  const auto request = pool["h1"].ask(1);
  REQUIRE(pool.answered(request));
  CHECK(parts(request) == "h1:1");
  CHECK(pool.placer().host.told("strange record in the pool's registry") >= 3);
}

TEST_CASE("the pool as people see it") {
  Pool pool({1, 2});
  const auto first = pool["h1"].ask(2);
  REQUIRE(pool.answered(first));
  const auto waiting = pool["h1"].ask(2);
  REQUIRE(comes(pool.io, [&] { return pool.keys("/requests/").size() == 1; }));
  test::run(pool.io, [&]() -> asio::awaitable<int> {
    co_await pool["h1"].member.set_tenant("t", TenantRecord{{5000, 300, 4}, 50});
    co_return 0;
  }());
  const auto view = test::run(pool.io, pool["h1"].member.view());
  CHECK(view->hosts.size() == 2);
  CHECK(view->hosts.at("h2").leases == 1);
  CHECK(view->tenants.at("t").weight == 50);
  CHECK(view->uses.at("t").compute_percent == 200);
  REQUIRE(view->waiting.size() == 1);
  CHECK(view->waiting[0].gpus == 2);
  CHECK(view->placer == pool.placer().host.name());
}

}  // namespace
}  // namespace fargpu::server::pool
