#include "memory_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fargpu::server::pool {

using Kind = RegistryError::Kind;

// --- watches ---------------------------------------------------------------------------------------------------------

class MemoryWatch final : public Watch {
 public:
  MemoryWatch(MemoryRegistry& registry, std::string prefix, std::int64_t after)
      : prefix_(std::move(prefix)),
        next_(after + 1),
        number_(++registry.store_->last_watch_),
        registry_(&registry),
        store_(registry.store_),
        timer_(registry.io_) {
    timer_.expires_at(asio::steady_timer::time_point::max());
    registry.watches_.insert(this);
    store_->add(*this);
    if (registry.link_->cut_off) fail(Kind::unavailable, "the registry is cut off");
  }
  ~MemoryWatch() override {
    if (registry_) registry_->watches_.erase(this);
    store_->remove(*this);
  }
  const std::string& prefix() const { return prefix_; }
  std::uint64_t number() const { return number_; }
  std::int64_t next_revision() const { return next_; }

  void fail(Kind kind, const std::string& why) {
    if (!failure_) failure_.emplace(kind, why);
    timer_.cancel();
  }
  void add(const Changes& changes) {
    if (failure_ || changes.revision < next_) return;
    Changes own{{}, changes.revision};
    for (const Change& change : changes.changes)
      if (change.entry.key.starts_with(prefix_)) own.changes.push_back(change);
    if (own.changes.empty()) return;
    next_ = changes.revision + 1;
    queue_.push_back(std::move(own));
    timer_.cancel();
  }
  void lose_registry() {
    fail(Kind::unavailable, "the registry is closed");
    registry_ = nullptr;
  }

  asio::awaitable<Changes> next() override {
    while (queue_.empty()) {
      if (failure_) throw RegistryError(*failure_);
      asio::error_code ignored;
      co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    if (registry_ && registry_->delay_.count() > 0) {
      asio::steady_timer later(timer_.get_executor(), registry_->delay_);
      co_await later.async_wait(asio::use_awaitable);
    }
    Changes all;
    for (Changes& changes : std::exchange(queue_, {})) {
      all.revision = changes.revision;
      std::move(changes.changes.begin(), changes.changes.end(), std::back_inserter(all.changes));
    }
    co_return all;
  }

 private:
  const std::string prefix_;
  std::int64_t next_;
  std::uint64_t number_ = 0;
  MemoryRegistry* registry_;
  const std::shared_ptr<MemoryStore> store_;
  asio::steady_timer timer_;  // cancelled when there is something
  std::deque<Changes> queue_;
  std::optional<RegistryError> failure_;
};

// --- the store -------------------------------------------------------------------------------------------------------

std::vector<std::int64_t> MemoryStore::lifetimes() const {
  std::vector<std::int64_t> all;
  for (const auto& [id, keys] : now_.lifetimes) all.push_back(id);
  return all;
}

std::int64_t MemoryStore::begin_lifetime() {
  now_.lifetimes[++last_lifetime_];
  return last_lifetime_;
}

void MemoryStore::end_lifetime(std::int64_t id) {
  const auto found = now_.lifetimes.find(id);
  if (found == now_.lifetimes.end()) return;
  const std::set<std::string> keys = std::move(found->second);
  now_.lifetimes.erase(found);
  Changes changes{{}, now_.revision + 1};
  for (const std::string& key : keys) erase(key, changes);
  tell(std::move(changes));
}

void MemoryStore::compact(std::int64_t revision) {
  compacted_ = std::max(compacted_, std::min(revision, now_.revision));
  while (!past_.empty() && past_.front().revision <= compacted_) past_.pop_front();
}

void MemoryStore::restore(Copy copy, bool renames) {
  now_ = std::move(copy);
  if (renames) ++name_;
  past_.clear();
  compacted_ = now_.revision;
  for (const auto& [prefix, watches] : watches_)
    for (MemoryWatch* const watch : watches)
      watch->fail(Kind::strange, fmt::format("the registry went back to revision {}", now_.revision));
}

void MemoryStore::put(const Operation& operation, Changes& changes) {
  Entry& entry = now_.entries[operation.key];
  if (entry.created == 0) entry.created = changes.revision;
  if (entry.lifetime != 0 && entry.lifetime != operation.lifetime)
    if (const auto old = now_.lifetimes.find(entry.lifetime); old != now_.lifetimes.end())
      old->second.erase(operation.key);
  if (operation.lifetime != 0) now_.lifetimes[operation.lifetime].insert(operation.key);
  entry.key = operation.key;
  entry.value = operation.value;
  entry.modified = changes.revision;
  entry.lifetime = operation.lifetime;
  changes.changes.push_back({false, entry});
}

void MemoryStore::erase(const std::string& key, Changes& changes) {
  const auto found = now_.entries.find(key);
  if (found == now_.entries.end()) return;
  if (const auto bound = now_.lifetimes.find(found->second.lifetime); bound != now_.lifetimes.end())
    bound->second.erase(key);
  now_.entries.erase(found);
  changes.changes.push_back({true, Entry{key, {}, 0, changes.revision, 0}});
}

Outcome MemoryStore::commit(const Transaction& transaction) {
  if (transaction.conditions.size() > transaction_max || transaction.operations.size() > transaction_max)
    throw RegistryError(Kind::strange, "too many operations in a transaction");
  std::set<std::string_view> keys;
  for (const Operation& operation : transaction.operations)
    if (operation.key.empty() || !keys.insert(operation.key).second)
      throw RegistryError(Kind::strange, "a key twice in a transaction, or none");
  for (const Condition& condition : transaction.conditions) {
    const auto found = now_.entries.find(condition.key);
    const std::int64_t is = found == now_.entries.end()                  ? 0
                            : condition.what == Condition::What::created ? found->second.created
                                                                         : found->second.modified;
    if (is != condition.revision) return {false, now_.revision};
  }
  for (const Operation& operation : transaction.operations)
    if (operation.what == Operation::What::put && operation.lifetime != 0 &&
        !now_.lifetimes.contains(operation.lifetime))
      throw RegistryError(Kind::lifetime_over, "a lifetime has ended that a transaction names");
  Changes changes{{}, now_.revision + 1};
  for (const Operation& operation : transaction.operations)
    if (operation.what == Operation::What::put) put(operation, changes);
    else erase(operation.key, changes);
  tell(std::move(changes));
  return {true, now_.revision};
}

// A change of nothing is none.
void MemoryStore::tell(Changes changes) {
  if (changes.changes.empty()) return;
  now_.revision = changes.revision;
  // A change goes to those watches that have a prefix of one of its keys: there may be thousands of others.
  std::map<std::uint64_t, MemoryWatch*> concerned;
  for (const Change& change : changes.changes) {
    const std::string_view key = change.entry.key;
    for (const auto& [size, count] : prefix_sizes_) {
      if (size > key.size()) break;
      if (const auto found = watches_.find(key.substr(0, size)); found != watches_.end())
        for (MemoryWatch* const watch : found->second) concerned.emplace(watch->number(), watch);
    }
  }
  for (const auto& [number, watch] : concerned) watch->add(changes);
  past_.push_back(std::move(changes));
  if (past_.size() > past_max) compact(past_.front().revision);
}

void MemoryStore::add(MemoryWatch& watch) {
  watches_[watch.prefix()].push_back(&watch);
  ++prefix_sizes_[watch.prefix().size()];
  if (watch.next_revision() <= compacted_)
    watch.fail(Kind::compacted, fmt::format("changes up to revision {} are forgotten", compacted_));
  for (const Changes& changes : past_) watch.add(changes);
}

void MemoryStore::remove(MemoryWatch& watch) {
  const auto found = watches_.find(watch.prefix());
  std::erase(found->second, &watch);
  if (found->second.empty()) watches_.erase(found);
  if (--prefix_sizes_[watch.prefix().size()] == 0) prefix_sizes_.erase(watch.prefix().size());
}

// --- a member's way to it --------------------------------------------------------------------------------------------

class MemoryRegistry::OwnLifetime final : public Lifetime {
 public:
  OwnLifetime(std::shared_ptr<MemoryStore> store, std::shared_ptr<Link> link, std::chrono::seconds seconds)
      : store_(std::move(store)), link_(std::move(link)), seconds_(seconds), id_(store_->begin_lifetime()) {}
  ~OwnLifetime() override {
    if (!link_->cut_off) store_->end_lifetime(id_);
  }
  std::int64_t id() const override { return id_; }
  bool lasts() const override {
    if (link_->cut_off) return std::chrono::steady_clock::now() < link_->since + seconds_;
    return store_->now_.lifetimes.contains(id_);
  }

 private:
  const std::shared_ptr<MemoryStore> store_;
  const std::shared_ptr<Link> link_;
  const std::chrono::seconds seconds_;
  const std::int64_t id_;
};

MemoryRegistry::MemoryRegistry(asio::io_context& io, std::shared_ptr<MemoryStore> store)
    : io_(io), store_(std::move(store)), link_(std::make_shared<Link>()), name_seen_(store_->name_) {}

MemoryRegistry::~MemoryRegistry() {
  for (MemoryWatch* const watch : watches_) watch->lose_registry();
}

void MemoryRegistry::cut_off(bool is) {
  if (is && !link_->cut_off) link_->since = std::chrono::steady_clock::now();
  link_->cut_off = is;
  if (!is) return;
  for (MemoryWatch* const watch : watches_) watch->fail(Kind::unavailable, "the registry is cut off");
}

asio::awaitable<void> MemoryRegistry::pass() {
  if (delay_.count() > 0) {
    asio::steady_timer later(io_, delay_);
    co_await later.async_wait(asio::use_awaitable);
  } else {
    co_await asio::post(io_, asio::use_awaitable);
  }
  if (link_->cut_off) throw RegistryError(Kind::unavailable, "the registry is cut off");
  if (failures_ > 0) {
    --failures_;
    throw RegistryError(failure_, "the registry was told to fail");
  }
}

void MemoryRegistry::look_back() {
  const std::int64_t seen = std::exchange(seen_, store_->revision());
  const std::uint64_t name = std::exchange(name_seen_, store_->name_);
  if (name != store_->name_) throw RegistryError(Kind::strange, "the registry is another one");
  if (seen > seen_)
    throw RegistryError(Kind::strange, fmt::format("the registry went back from revision {} to {}", seen, seen_));
}

asio::awaitable<Snapshot> MemoryRegistry::read(std::vector<std::string> prefixes) {
  ++reads_;
  co_await pass();
  look_back();
  std::map<std::string_view, const Entry*> found;  // prefixes may overlap
  for (const std::string& prefix : prefixes)
    for (auto at = store_->now_.entries.lower_bound(prefix);
         at != store_->now_.entries.end() && at->first.starts_with(prefix); ++at)
      found.emplace(at->first, &at->second);
  Snapshot snapshot;
  snapshot.revision = store_->revision();
  for (const auto& [key, entry] : found) snapshot.entries.push_back(*entry);
  co_return snapshot;
}

asio::awaitable<Outcome> MemoryRegistry::commit(Transaction transaction) {
  co_await pass();
  look_back();
  const Outcome outcome = store_->commit(transaction);
  seen_ = store_->revision();
  if (lost_answers_ > 0) {
    --lost_answers_;
    throw RegistryError(Kind::unavailable, "the registry did not answer");
  }
  co_return outcome;
}

asio::awaitable<std::unique_ptr<Lifetime>> MemoryRegistry::begin_lifetime(std::chrono::seconds seconds) {
  co_await pass();
  co_return std::make_unique<OwnLifetime>(store_, link_, seconds);
}

std::unique_ptr<Watch> MemoryRegistry::watch(std::string prefix, std::int64_t after) {
  return std::make_unique<MemoryWatch>(*this, std::move(prefix), after);
}

asio::awaitable<std::string> MemoryRegistry::describe() {
  co_await pass();
  co_return "a registry in memory";
}

asio::awaitable<std::string> MemoryRegistry::identity() {
  co_await pass();
  co_return fmt::format("memory-{}", store_->name_);
}

}  // namespace fargpu::server::pool
