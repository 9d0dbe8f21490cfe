#include "placer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

namespace fargpu::server::pool {
namespace {

// Requests may grow old without any change.
constexpr auto round_at_least_each = std::chrono::seconds(1);
// Between two looks at something whose change is about to be heard of.
constexpr auto soon = std::chrono::milliseconds(100);
// The placer's key, the request, its answer, and a lease for each part.
constexpr std::size_t operations_of(std::size_t parts) { return 2 + parts; }

}  // namespace

Placer::Placer(asio::io_context& io, Registry& registry, Keys keys, std::int64_t elected, Log log)
    : io_(io), registry_(registry), keys_(std::move(keys)), elected_(elected), log_(std::move(log)), wake_(io) {}

void Placer::stop() {
  over_ = true;
  wake_.cancel();
}

void Placer::fail(std::exception_ptr failure) {
  if (!failure_) failure_ = std::move(failure);
  stop();
}

void Placer::poke() {
  poked_ = true;
  wake_.cancel();
}

asio::awaitable<void> Placer::pause(std::chrono::milliseconds most) {
  if (poked_ || over_) {
    poked_ = false;
    co_return;
  }
  wake_.expires_after(most);
  asio::error_code ignored;
  co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  poked_ = false;
}

asio::awaitable<void> Placer::run() {
  std::vector<std::string> everything{keys_.root()};
  const Snapshot snapshot = co_await registry_.read(std::move(everything));
  bool elected = false;
  std::vector<const Entry*> requests;
  for (const Entry& entry : snapshot.entries) {
    if (entry.key == keys_.placer()) elected = entry.created == elected_;
    if (entry.key.starts_with(keys_.requests())) requests.push_back(&entry);
    else enter(entry);
  }
  if (!elected) co_return;
  // They queue in the order in which they came, by the weights of their tenants.
  std::sort(requests.begin(), requests.end(), [](const Entry* a, const Entry* b) { return a->created < b->created; });
  for (const Entry* const entry : requests) enter(*entry);
  followed_ = snapshot.revision;
  asio::co_spawn(
      io_,
      [self = shared_from_this(), after = snapshot.revision]() -> asio::awaitable<void> {
        try {
          co_await self->follow(after);
        } catch (...) {
          self->fail(std::current_exception());
        }
      },
      asio::detached);
  try {
    co_await decide();
  } catch (...) {
    fail(std::current_exception());
  }
  if (failure_) std::rethrow_exception(failure_);
}

// --- what the registry says -----------------------------------------------------------------------------------------

asio::awaitable<void> Placer::follow(std::int64_t after) {
  const std::unique_ptr<Watch> watch = registry_.watch(keys_.root(), after);
  while (!over_) {
    const Changes changes = co_await watch->next();
    for (const Change& change : changes.changes) apply(change);
    followed_ = std::max(followed_, changes.revision);
    // Also for what waits until it has followed so far.
    poke();
  }
}

void Placer::apply(const Change& change) {
  if (change.entry.key == keys_.placer() && (change.deleted || change.entry.created != elected_)) {
    stop();
    return;
  }
  if (change.deleted) forget(change.entry.key);
  else enter(change.entry);
}

namespace {

// What follows a prefix, if a key begins with it.
std::optional<std::string> rest_of(const std::string& key, const std::string& prefix) {
  if (!key.starts_with(prefix)) return std::nullopt;
  return key.substr(prefix.size());
}

struct PlaceOfLease {
  std::string host, id;
};
// Of a lease's key below the prefix for everybody: HOST/lease/ID.
std::optional<PlaceOfLease> lease_of(const std::string& rest) {
  constexpr std::string_view middle = "/lease/";
  const auto at = rest.find('/');
  if (at == std::string::npos || rest.compare(at, middle.size(), middle) != 0) return std::nullopt;
  PlaceOfLease place{rest.substr(0, at), rest.substr(at + middle.size())};
  if (!is_name(place.host) || !is_name(place.id)) return std::nullopt;
  return place;
}

}  // namespace

// A record that cannot be read counts as none.
void Placer::enter(const Entry& entry) {
  const auto bad = [&] {
    log_(true, "strange record in the pool's registry", {{"key", entry.key}, {"meaning", "it is left out"}});
    forget(entry.key);
  };
  if (const auto name = rest_of(entry.key, keys_.hosts())) {
    auto record = read<HostRecord>(entry.value);
    if (!record || !is_name(*name) || entry.lifetime == 0) return bad();
    placement_.set_host(*name, std::move(*record), entry.lifetime);
  } else if (const auto name = rest_of(entry.key, keys_.rooms())) {
    auto record = read<RoomRecord>(entry.value);
    if (!record || !is_name(*name)) return bad();
    placement_.set_room(*name, std::move(*record));
  } else if (const auto name = rest_of(entry.key, keys_.known_hosts())) {
    auto record = read<HostRecord>(entry.value);
    if (!record || !is_name(*name)) return bad();
    placement_.set_known(*name, std::move(*record));
  } else if (const auto name = rest_of(entry.key, keys_.tenants())) {
    const auto record = read<TenantRecord>(entry.value);
    if (!record) return bad();
    placement_.set_tenant(*name, *record);
  } else if (const auto id = rest_of(entry.key, keys_.requests())) {
    auto record = read<RequestRecord>(entry.value);
    if (!record || !is_name(*id) || entry.lifetime == 0) return bad();
    placement_.set_request(*id, std::move(*record), entry.created, Clock::now());
  } else if (const auto rest = rest_of(entry.key, keys_.everybody())) {
    if (const auto place = lease_of(*rest)) {
      auto record = read<LeaseRecord>(entry.value);
      if (!record) return bad();
      placement_.set_lease(place->host, place->id, std::move(*record), entry.created);
    }
  }
}

void Placer::forget(const std::string& key) {
  if (const auto name = rest_of(key, keys_.hosts())) placement_.erase_host(*name);
  else if (const auto name = rest_of(key, keys_.rooms())) placement_.erase_room(*name);
  else if (const auto name = rest_of(key, keys_.known_hosts())) placement_.erase_known(*name);
  else if (const auto name = rest_of(key, keys_.tenants())) placement_.erase_tenant(*name);
  else if (const auto id = rest_of(key, keys_.requests())) placement_.erase_request(*id);
  else if (const auto rest = rest_of(key, keys_.everybody()))
    if (const auto place = lease_of(*rest)) placement_.erase_lease(place->host, place->id);
}

// --- deciding -------------------------------------------------------------------------------------------------------

asio::awaitable<void> Placer::decide() {
  constexpr std::size_t most = transaction_max / operations_of(1);
  auto last = Clock::time_point();
  while (!over_) {
    if (!placement_.worth_deciding() && Clock::now() - last < round_at_least_each) {
      co_await pause(round_at_least_each);
      continue;
    }
    last = Clock::now();
    std::vector<Placement::Decision> decisions = placement_.decide(most, last);
    counts_.waiting = placement_.waiting();
    counts_.hosts = placement_.hosts();
    counts_.leases = placement_.leases();
    if (decisions.empty()) continue;
    ++counts_.rounds;
    // As many as one transaction takes; the others are decided anew.
    std::size_t operations = 0, fit = 0;
    while (fit < decisions.size() &&
           operations + operations_of(decisions[fit].answer.parts.size()) <= transaction_max - 1)
      operations += operations_of(decisions[fit++].answer.parts.size());
    if (fit < decisions.size() || decisions.size() == most) last = {};  // there are more
    decisions.resize(fit);
    bool lifetime_over = false;
    try {
      if (!co_await commit(decisions)) last = {};
    } catch (const RegistryError& error) {
      if (error.kind != RegistryError::Kind::lifetime_over) throw;
      lifetime_over = true;
      last = {};
    }
    if (lifetime_over) co_await commit_each(std::move(decisions));
  }
}

// One of them is of a host that has gone.
asio::awaitable<void> Placer::commit_each(std::vector<Placement::Decision> decisions) {
  bool any_gone = false;
  for (const Placement::Decision& decision : decisions) {
    if (over_) co_return;
    bool gone = false;
    try {
      co_await commit({&decision, 1});
    } catch (const RegistryError& error) {
      if (error.kind != RegistryError::Kind::lifetime_over) throw;
      gone = true;
    }
    if (gone) co_await doubt_hosts(decision);
    any_gone |= gone;
  }
  // If it is the one that was asked, the request is about to go with it.
  if (any_gone) co_await pause(soon);
}

// The hosts of this decision that have gone, or joined anew, without its having been heard of.
asio::awaitable<void> Placer::doubt_hosts(const Placement::Decision& decision) {
  std::set<std::string> names{decision.request.front};
  for (const Part& part : decision.answer.parts) names.insert(part.host);
  std::vector<std::string> keys;
  for (const std::string& name : names) keys.push_back(keys_.host(name));
  const Snapshot snapshot = co_await registry_.read(std::move(keys));
  if (followed_ > snapshot.revision) co_return;  // more is known by now
  for (const Entry& entry : snapshot.entries)
    if (const auto name = rest_of(entry.key, keys_.hosts()); name && entry.lifetime == placement_.lifetime_of(*name))
      names.erase(*name);
  for (const std::string& name : names) placement_.doubt(name);
}

asio::awaitable<bool> Placer::commit(std::span<const Placement::Decision> decisions) {
  Transaction transaction;
  transaction.require_created(keys_.placer(), elected_);
  for (const Placement::Decision& decision : decisions) {
    const RequestRecord& request = decision.request;
    transaction.require_created(keys_.request(decision.id), decision.created);
    transaction.erase(keys_.request(decision.id));
    if (const std::int64_t asked = placement_.lifetime_of(request.front); asked != 0)
      transaction.put(keys_.answer(request.front, decision.id), write(decision.answer), asked);
    for (const Part& part : decision.answer.parts) {
      LeaseRecord lease = decision.lease;
      lease.gpus = part.gpus;
      lease.fence = elected_;
      transaction.put(keys_.lease(part.host, decision.id), write(lease), placement_.lifetime_of(part.host));
    }
  }
  const Outcome outcome = co_await registry_.commit(std::move(transaction));
  if (!outcome.committed) {
    // A request was taken back meanwhile, or another placer was elected: the changes say it. A change elsewhere in the
    // store is not heard of.
    const auto patience = Clock::now() + round_at_least_each;
    while (!over_ && followed_ < outcome.revision && Clock::now() < patience) co_await pause(soon);
    co_return false;
  }
  for (const Placement::Decision& decision : decisions) entered(decision, outcome.revision);
  co_return true;
}

void Placer::entered(const Placement::Decision& decision, std::int64_t revision) {
  const RequestRecord& request = decision.request;
  placement_.erase_request(decision.id);
  std::string where;
  for (const Part& part : decision.answer.parts) {
    LeaseRecord lease = decision.lease;
    lease.gpus = part.gpus;
    lease.fence = elected_;
    // What has been heard of may have ended.
    if (followed_ < revision) placement_.set_lease(part.host, decision.id, std::move(lease), revision);
    where += fmt::format("{}{}:{}", where.empty() ? "" : ",", part.host, part.gpus);
  }
  ++(where.empty() ? counts_.refused : counts_.granted);
  log_(false, where.empty() ? "pool refuses" : "pool places",
       {{"placement", decision.id},
        {"tenant", request.tenant},
        {"asked", request.front},
        {"program", request.program},
        {"client", request.client},
        {"at", where},
        {"reason", decision.reason}});
}

}  // namespace fargpu::server::pool
