// What every registry does: the one in memory, by which much else is tested, and etcd.

#include <catch2/catch.hpp>

#include <fmt/format.h>

#include <set>

#include "etcd_server.h"
#include "server/pool/etcd_registry.h"
#include "server/pool/memory_registry.h"
#include "waits.h"

namespace fargpu::server::pool {
namespace {

using namespace std::chrono_literals;
using test::run;
using Kind = RegistryError::Kind;

// A store with two ways to it. etcd is started once; each test has keys of its own.
struct Stores {
  explicit Stores(bool in_memory) : memory(in_memory) {
    static unsigned number = 0;
    root = fmt::format("test/{}/", ++number);
    if (memory) {
      const auto store = std::make_shared<MemoryStore>();
      a = std::make_unique<MemoryRegistry>(io, store);
      b = std::make_unique<MemoryRegistry>(io, store);
    } else {
      static test::EtcdServer server;
      etcd = &server;
      a = open();
      b = open();
    }
  }
  std::unique_ptr<Registry> open() {
    EtcdOptions options;
    options.endpoints = etcd->endpoint();
#ifdef FARGPU_ETCD_PLUGIN
    options.plugin = FARGPU_ETCD_PLUGIN;
#endif
    return std::make_unique<EtcdRegistry>(io, options);
  }
  std::string key(const std::string& name) const { return root + name; }
  Outcome put(const std::string& name, const std::string& value, std::int64_t lifetime = 0) {
    Transaction transaction;
    transaction.put(key(name), value, lifetime);
    return run(io, a->commit(transaction));
  }
  Snapshot all() { return run(io, b->read({root})); }
  void compact(std::int64_t revision) {
    if (memory) static_cast<MemoryRegistry&>(*a).store().compact(revision);
    else REQUIRE(etcd->control({"compaction", std::to_string(revision)}));
  }

  const bool memory;
  test::EtcdServer* etcd = nullptr;
  std::string root;
  asio::io_context io;
  std::unique_ptr<Registry> a, b;
};

// Those of the two that this machine has.
bool chosen(bool& memory) {
  memory = GENERATE(true, false);
  return memory || test::has_etcd();
}

TEST_CASE("registry: a transaction takes place whole, or not at all") {
  bool memory = false;
  if (!chosen(memory)) return;
  Stores stores(memory);
  const Outcome first = stores.put("x", "1");
  CHECK(first.committed);

  Transaction transaction;
  transaction.require_modified(stores.key("x"), first.revision);
  transaction.require_absent(stores.key("y"));
  transaction.put(stores.key("x"), "2");
  transaction.put(stores.key("y"), std::string("a\0b", 3));
  transaction.erase(stores.key("nothing"));
  const Outcome second = run(stores.io, stores.a->commit(transaction));
  CHECK(second.committed);
  CHECK(second.revision == first.revision + 1);

  const Outcome third = run(stores.io, stores.a->commit(transaction));
  CHECK_FALSE(third.committed);
  CHECK(third.revision == second.revision);

  const Snapshot all = stores.all();
  REQUIRE(all.entries.size() == 2);
  CHECK(all.revision == second.revision);
  CHECK(all.entries[0].value == "2");
  CHECK(all.entries[0].created == first.revision);
  CHECK(all.entries[0].modified == second.revision);
  CHECK(all.entries[1].key == stores.key("y"));
  CHECK(all.entries[1].value == std::string("a\0b", 3));
  CHECK(all.entries[1].lifetime == 0);

  // A key that is put again after it went is another one.
  Transaction erase;
  erase.require_created(stores.key("x"), first.revision);
  erase.erase(stores.key("x"));
  CHECK(run(stores.io, stores.a->commit(erase)).committed);
  stores.put("x", "3");
  CHECK_FALSE(run(stores.io, stores.a->commit(erase)).committed);
  CHECK(stores.all().entries[0].created > second.revision);

  // What changes nothing has no revision of its own.
  const std::int64_t before = stores.all().revision;
  Transaction nothing;
  nothing.erase(stores.key("nothing"));
  CHECK(run(stores.io, stores.a->commit(nothing)).revision == before);
}

TEST_CASE("registry: a transaction has bounds") {
  bool memory = false;
  if (!chosen(memory)) return;
  Stores stores(memory);
  Transaction most;
  for (std::size_t i = 0; i < transaction_max; ++i) {
    most.require_absent(stores.key(fmt::format("{:03}", i)));
    most.put(stores.key(fmt::format("{:03}", i)), "v");
  }
  CHECK(run(stores.io, stores.a->commit(most)).committed);
  most.put(stores.key("more"), "v");
  const auto more = test::failure(stores.io, [&] { return stores.a->commit(most); });
  REQUIRE(more);
  CHECK(more->kind == Kind::strange);
  Transaction twice;
  twice.put(stores.key("x"), "1");
  twice.put(stores.key("x"), "2");
  const auto same = test::failure(stores.io, [&] { return stores.a->commit(twice); });
  REQUIRE(same);
  CHECK(same->kind == Kind::strange);
  CHECK(stores.all().entries.size() == transaction_max);
}

TEST_CASE("registry: keys go with their lifetime, as one change") {
  bool memory = false;
  if (!chosen(memory)) return;
  Stores stores(memory);
  std::unique_ptr<Lifetime> lifetime = run(stores.io, stores.a->begin_lifetime(2s));
  const std::int64_t id = lifetime->id();
  CHECK(id != 0);
  CHECK(lifetime->lasts());
  stores.put("a", "1", id);
  stores.put("b", "1", id);
  stores.put("c", "1", id);
  CHECK(stores.all().entries[0].lifetime == id);
  const std::int64_t last = stores.put("b", "2").revision;  // bound no more
  const auto watch = stores.b->watch(stores.root, last);
  test::go_on(stores.io, 2500ms);  // longer than the lifetime is without a word
  CHECK(lifetime->lasts());
  CHECK(stores.all().entries.size() == 3);
  lifetime.reset();
  const Changes changes = run(stores.io, watch->next());
  REQUIRE(changes.changes.size() == 2);
  CHECK(changes.changes[0].deleted);
  CHECK(changes.changes[0].entry.key == stores.key("a"));
  CHECK(changes.changes[0].entry.modified == changes.revision);
  CHECK(changes.changes[1].entry.key == stores.key("c"));
  CHECK(changes.revision == last + 1);

  Transaction late;
  late.put(stores.key("d"), "1");
  late.put(stores.key("e"), "1", id);
  const auto over = test::failure(stores.io, [&] { return stores.a->commit(late); });
  REQUIRE(over);
  CHECK(over->kind == Kind::lifetime_over);
  const Snapshot all = stores.all();
  REQUIRE(all.entries.size() == 1);
  CHECK(all.entries[0].value == "2");
  // Where a condition does not hold, nobody looks at lifetimes.
  late.require_absent(stores.key("b"));
  CHECK_FALSE(run(stores.io, stores.a->commit(late)).committed);
}

TEST_CASE("registry: a lifetime that the store has ended is known to have") {
  bool memory = false;
  if (!chosen(memory)) return;
  Stores stores(memory);
  const std::unique_ptr<Lifetime> lifetime = run(stores.io, stores.a->begin_lifetime(2s));
  if (memory) static_cast<MemoryRegistry&>(*stores.a).store().end_lifetime(lifetime->id());
  else REQUIRE(stores.etcd->control({"lease", "revoke", fmt::format("{:x}", lifetime->id())}));
  CHECK(test::comes(
      stores.io, [&] { return !lifetime->lasts(); }, 2s));
}

TEST_CASE("registry: a watch tells of everything after its revision, in order and in whole transactions") {
  bool memory = false;
  if (!chosen(memory)) return;
  Stores stores(memory);
  const std::int64_t before = stores.put("at/x", "0").revision;
  stores.put("at/x", "1");
  stores.put("other", "1");
  auto old = stores.b->watch(stores.key("at/"), before);
  auto early = stores.b->watch(stores.key("at/"), before - 1);
  auto others = stores.b->watch(stores.key("o"), before);
  const Changes first = run(stores.io, old->next());
  REQUIRE(first.changes.size() == 1);
  CHECK(first.changes[0].entry.value == "1");
  CHECK(first.changes[0].entry.created == before);
  CHECK(first.revision == before + 1);
  CHECK(run(stores.io, early->next()).changes[0].entry.value == "0");
  CHECK(run(stores.io, others->next()).changes[0].entry.key == stores.key("other"));

  // 50 transactions, of which each counts two keys up.
  for (int i = 2; i < 52; ++i) {
    Transaction transaction;
    transaction.put(stores.key("at/y"), std::to_string(i));
    transaction.put(stores.key("at/x"), std::to_string(i));
    run(stores.io, stores.a->commit(transaction));
  }
  int seen = 1;
  std::int64_t revision = first.revision;
  while (seen < 51) {
    const Changes changes = run(stores.io, old->next());
    REQUIRE(changes.changes.size() % 2 == 0);
    for (std::size_t i = 0; i < changes.changes.size(); i += 2) {
      ++seen;
      CHECK(changes.changes[i].entry.key == stores.key("at/y"));
      CHECK(changes.changes[i + 1].entry.value == std::to_string(seen));
      CHECK(changes.changes[i].entry.modified == changes.changes[i + 1].entry.modified);
      CHECK(changes.changes[i].entry.modified > revision);
      revision = changes.changes[i].entry.modified;
    }
    CHECK(changes.revision == revision);
  }
  // Another one goes on where this one was.
  old.reset();
  stores.put("at/z", "end");
  const auto next = stores.b->watch(stores.key("at/"), revision);
  CHECK(run(stores.io, next->next()).changes[0].entry.value == "end");
}

TEST_CASE("registry: forgotten changes are not skipped") {
  bool memory = false;
  if (!chosen(memory)) return;
  Stores stores(memory);
  const std::int64_t first = stores.put("x", "1").revision;
  std::int64_t last = 0;
  for (int i = 0; i < 10; ++i) last = stores.put("x", "2").revision;
  stores.compact(last);
  const auto late = stores.b->watch(stores.root, first);
  const auto compacted = test::failure(stores.io, [&] { return late->next(); });
  REQUIRE(compacted);
  CHECK(compacted->kind == Kind::compacted);
  const auto good = stores.b->watch(stores.root, last);
  stores.put("x", "3");
  CHECK(run(stores.io, good->next()).changes[0].entry.value == "3");
}

TEST_CASE("registry: many keys are read as of one revision") {
  bool memory = false;
  if (!chosen(memory)) return;
  Stores stores(memory);
  for (int i = 0; i < 2000; i += 100) {
    Transaction transaction;
    for (int j = i; j < i + 100; ++j)
      transaction.put(stores.key(fmt::format("{}/{:05}", j % 2 ? "odd" : "even", j)), std::string(500, 'v'));
    run(stores.io, stores.a->commit(transaction));
  }
  const std::int64_t last = stores.put("single", "1").revision;
  const Snapshot all = run(stores.io, stores.b->read({stores.root, stores.key("odd/")}));
  CHECK(all.entries.size() == 2001);
  CHECK(all.revision == last);
  CHECK(std::is_sorted(all.entries.begin(), all.entries.end(),
                       [](const Entry& a, const Entry& b) { return a.key < b.key; }));
  CHECK(run(stores.io, stores.b->read({stores.key("odd/"), stores.key("single"), stores.key("none")})).entries.size() ==
        1001);

  // While somebody changes two keys together, no reader sees them differ.
  bool stop = false;
  asio::co_spawn(
      stores.io,
      [&]() -> asio::awaitable<void> {
        for (int i = 0; !stop; ++i) {
          Transaction transaction;
          transaction.put(stores.key("even/00000"), std::to_string(i));
          transaction.put(stores.key("odd/01999"), std::to_string(i));
          co_await stores.a->commit(transaction);
        }
        stop = false;
      },
      asio::detached);
  for (int i = 0; i < 5; ++i) {
    const Snapshot both = run(stores.io, stores.b->read({stores.key("even/"), stores.key("odd/")}));
    REQUIRE(both.entries.size() == 2000);
    if (i > 0) CHECK(both.entries.front().value == both.entries.back().value);
  }
  stop = true;
  CHECK(test::comes(stores.io, [&] { return !stop; }));
}

TEST_CASE("registry: the end of it ends what waits") {
  bool memory = false;
  if (!chosen(memory)) return;
  Stores stores(memory);
  std::optional<Kind> ended;
  auto watch = stores.a->watch(stores.root, stores.put("x", "1").revision);
  asio::co_spawn(
      stores.io,
      [&]() -> asio::awaitable<void> {
        try {
          co_await watch->next();
        } catch (const RegistryError& error) {
          ended = error.kind;
        }
      },
      asio::detached);
  test::go_on(stores.io, 50ms);
  const auto before = std::chrono::steady_clock::now();
  stores.a.reset();
  CHECK(std::chrono::steady_clock::now() - before < 1s);
  CHECK(test::comes(
      stores.io, [&] { return ended.has_value(); }, 1s));
  CHECK(ended == Kind::unavailable);
  watch.reset();
}

TEST_CASE("registry: it has a name, and says what it is") {
  bool memory = false;
  if (!chosen(memory)) return;
  Stores stores(memory);
  CHECK(run(stores.io, stores.a->identity()) == run(stores.io, stores.b->identity()));
  const std::string text = run(stores.io, stores.a->describe());
  if (memory) CHECK(text == "a registry in memory");
  else CHECK_THAT(text, Catch::StartsWith("etcd 3.") && Catch::Contains(stores.etcd->endpoint()));
}

// --- faults of the one in memory ------------------------------------------------------------------------------------

TEST_CASE("memory registry: it can be cut off, lose answers, fail and go back") {
  asio::io_context io;
  const auto store = std::make_shared<MemoryStore>();
  MemoryRegistry a(io, store), b(io, store);
  const auto kind_of = [&](Registry& registry) -> std::optional<Kind> {
    Transaction transaction;
    transaction.put("x", "1");
    const auto error = test::failure(io, [&] { return registry.commit(transaction); });
    return error ? std::optional(error->kind) : std::nullopt;
  };
  const std::unique_ptr<Lifetime> lifetime = run(io, a.begin_lifetime(1s));
  const auto watch = a.watch("", store->revision());
  a.cut_off(true);
  CHECK(kind_of(a) == Kind::unavailable);
  CHECK(kind_of(b) == std::nullopt);
  CHECK(test::failure(io, [&] { return watch->next(); })->kind == Kind::unavailable);
  CHECK(lifetime->lasts());
  test::go_on(io, 1100ms);
  CHECK_FALSE(lifetime->lasts());
  CHECK(store->lifetimes().size() == 1);
  a.cut_off(false);
  CHECK(kind_of(a) == std::nullopt);

  const std::int64_t revision = store->revision();
  a.lose_answers(1);
  CHECK(kind_of(a) == Kind::unavailable);
  CHECK(store->revision() == revision + 1);
  a.fail(Kind::full, 1);
  CHECK(kind_of(a) == Kind::full);
  CHECK(store->revision() == revision + 1);

  const MemoryStore::Copy copy = store->copy();
  CHECK(kind_of(a) == std::nullopt);
  const auto present = a.watch("", store->revision());
  const std::string name = run(io, a.identity());
  store->restore(copy, true);
  CHECK(test::failure(io, [&] { return present->next(); })->kind == Kind::strange);
  CHECK(kind_of(a) == Kind::strange);
  CHECK(kind_of(a) == std::nullopt);
  CHECK(run(io, a.identity()) != name);
}

}  // namespace
}  // namespace fargpu::server::pool
