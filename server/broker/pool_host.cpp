#include "pool_host.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "event_log.h"
#include "protocol/errors.h"
#include "protocol/text.h"
#include "tenants.h"

namespace fargpu::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto look_interval = std::chrono::seconds(1);
// What programs hold without a limit of their own changes all the time; the pool need not hear of every byte.
constexpr std::uint64_t worth_telling = 32;  // a part of a device
constexpr auto tell_all_after = std::chrono::seconds(30);
constexpr std::size_t refusals_max = 64;
// A registry that is lost has left a view of the pool that is not older than this.
constexpr auto view_again_after = std::chrono::minutes(2);

std::string random_name() {
  JobKey bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw SystemError("no random numbers");
  return text_of(bytes);
}

bool much_differs(const pool::RoomRecord& now, const pool::RoomRecord& told, const Leases& leases) {
  if (now.state != told.state || now.sessions != told.sessions || now.load != told.load ||
      now.devices.size() != told.devices.size())
    return true;
  for (unsigned device = 0; device < now.devices.size(); ++device) {
    const auto &one = now.devices[device], &other = told.devices[device];
    if (one.percent != other.percent || one.idle != other.idle) return true;
    const std::uint64_t apart = std::max(one.bytes, other.bytes) - std::min(one.bytes, other.bytes);
    if (apart > leases.capacity(device) / worth_telling) return true;
  }
  return false;
}

}  // namespace

std::string text_of(const JobKey& job) {
  std::string text;
  for (const std::byte byte : job) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

std::optional<JobKey> parse_job(const std::string& text) {
  JobKey job;
  if (text.size() != 2 * job.size()) return std::nullopt;
  const auto digit = [](char letter) {
    return letter >= '0' && letter <= '9' ? letter - '0' : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
  };
  for (std::size_t i = 0; i < job.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    job[i] = static_cast<std::byte>(16 * high + low);
  }
  return job;
}

/// Belongs to a lease, and tells of its end.
class PoolHost::Mark {
 public:
  Mark(std::weak_ptr<PoolHost*> host, std::string id) : host_(std::move(host)), id_(std::move(id)) {}
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() {
    if (const auto host = host_.lock()) (*host)->gone(id_);
  }
  const std::string& id() const { return id_; }

 private:
  const std::weak_ptr<PoolHost*> host_;
  const std::string id_;
};

PoolHost::PoolHost(asio::io_context& io, pool::Registry& registry, pool::MemberOptions options, Leases& leases,
                   Facts facts)
    : options_(options),
      leases_(leases),
      facts_(std::move(facts)),
      self_(std::make_shared<PoolHost*>(this)),
      io_(io),
      look_(io),
      member_(io, registry, std::move(options),
              {.describe = [this] { return describe(); },
               .room =
                   [this] {
                     told_ = room();
                     told_at_ = Clock::now();
                     return told_;
                   },
               .admit = [this](const std::string& id, const pool::LeaseRecord& lease) { return admit(id, lease); },
               .withdraw = [this](const std::string& id) { withdraw(id); },
               .kept =
                   [this] {
                     std::map<std::string, pool::LeaseRecord> kept;
                     for (const auto& [id, entry] : entries_) kept.emplace(id, entry.record);
                     return kept;
                   },
               .joined = [this] { last_view(); },
               .log =
                   [](bool warning, const std::string& event,
                      const std::vector<std::pair<std::string, std::string>>& facts) {
                     std::vector<Field> fields;
                     for (const auto& [name, value] : facts) fields.emplace_back(name.c_str(), value);
                     EventLog::write(warning ? EventLog::Level::warn : EventLog::Level::info, event, fields);
                   }}) {}

PoolHost::~PoolHost() { self_.reset(); }

void PoolHost::start(std::string address) {
  address_ = std::move(address);
  for (const auto& lease : leases_.all()) enter(random_name(), record_of(*lease), lease);
  watch_ = leases_.watch([this] { changed(); });
  member_.start();
  EventLog::info("pool", {{"pool", options_.pool}, {"host", options_.host}, {"address", address_}});
  look();
}

void PoolHost::stop(std::function<void()> left) {
  look_.cancel();
  watch_.reset();
  member_.stop(std::move(left));
}

void PoolHost::leave_to_next(std::function<void()> withdrawn) { member_.withdraw_requests(std::move(withdrawn)); }

void PoolHost::changed() { member_.changed(); }

void PoolHost::not_reached(const std::string& address, const std::string& host) {
  if (view_ && (view_->hosts.contains(host) || view_->away.contains(host))) unreached_.note(address, host);
}

std::string PoolHost::why_no_leases() const {
  if (member_.in_touch()) return "";
  return fmt::format(
      "this host is not in touch with the registry of its pool '{}', and gives no new leases until it is: {}",
      options_.pool, member_.trouble());
}

// --- what is told of the host ---------------------------------------------------------------------------------------

pool::HostRecord PoolHost::describe() const {
  pool::HostRecord record;
  record.identity = options_.identity;
  record.address = address_;
  record.version = FARGPU_VERSION;
  record.devices = facts_.devices();
  record.devices.resize(std::min<std::size_t>({record.devices.size(), leases_.devices(), pool::devices_max}));
  for (unsigned device = 0; device < record.devices.size(); ++device)
    record.devices[device].bytes = leases_.capacity(device);
  record.sessions_max = static_cast<std::uint32_t>(facts_.sessions_max);
  record.names_tenants = leases_.tenants().configured();
  if (!record.names_tenants) return record;
  for (const auto& [name, tenant] : leases_.tenants().all()) {
    if (!pool::is_name(name)) continue;
    pool::HostRecord::Tenant& told = record.tenants[name];
    // Each lease has one session or more.
    told.limits = {tenant.memory_bytes, tenant.compute_percent, static_cast<std::uint32_t>(tenant.sessions_max)};
    told.devices = tenant.devices;
  }
  return record;
}

pool::RoomRecord PoolHost::room() const {
  pool::RoomRecord record;
  record.state = facts_.state();
  const auto leases = leases_.all();
  std::vector<bool> idle(std::min<std::size_t>(leases_.devices(), pool::devices_max), true);
  // One that has no session yet will have one.
  std::size_t taken = facts_.sessions_taken();
  for (const auto& lease : leases) {
    taken += lease->sessions == 0;
    for (const unsigned device : lease->devices)
      if (device < idle.size()) idle[device] = false;
  }
  record.load = static_cast<std::uint32_t>(taken);
  record.sessions = static_cast<std::uint32_t>(facts_.sessions_max - std::min(facts_.sessions_max, taken));
  for (unsigned device = 0; device < idle.size(); ++device)
    record.devices.push_back({leases_.free_bytes(device), leases_.free_percent(device), idle[device]});
  return record;
}

// --- leases ---------------------------------------------------------------------------------------------------------

void PoolHost::enter(const std::string& id, const pool::LeaseRecord& record, const std::shared_ptr<Lease>& lease) {
  Entry entry{record, lease, nullptr, {}};
  if (Entry* const before = entry_of(*lease)) {  // under another name, whose client has not come
    entry.kept = std::move(before->kept);
    entry.until = before->until;
  }
  // First, as the end of a mark that the lease had until now is of another name.
  entries_[id] = std::move(entry);
  lease->in_pool = std::make_shared<Mark>(self_, id);
}

PoolHost::Entry* PoolHost::entry_of(const Lease& lease) {
  if (!lease.in_pool) return nullptr;
  const auto place = entries_.find(static_cast<const Mark*>(lease.in_pool.get())->id());
  return place == entries_.end() ? nullptr : &place->second;
}

// A lease of a broker that was of no pool has no job perhaps.
pool::LeaseRecord PoolHost::record_of(Lease& lease) const {
  if (!lease.job) lease.job = parse_job(random_name());
  pool::LeaseRecord record;
  record.tenant = lease.tenant;
  record.job = text_of(*lease.job);
  record.gpus = static_cast<std::uint32_t>(lease.devices.size());
  record.memory_bytes = lease.memory_bytes;
  record.compute_percent = lease.compute_percent;
  record.priority = text_of(lease.priority);
  return record;
}

std::string PoolHost::why_not(const std::string& id, const pool::LeaseRecord& record) {
  const auto job = parse_job(record.job);
  if (!job) return "its record names no job";
  const LeaseWish wish{record.gpus, record.memory_bytes, record.compute_percent, parse_priority(record.priority)};
  if (const auto lease = leases_.find(record.tenant, *job)) {
    // Of an earlier broker of this host, or of this one before the registry was away.
    if (lease->devices.size() != record.gpus || lease->memory_bytes != record.memory_bytes ||
        lease->compute_percent != record.compute_percent)
      return "its job has another lease here, which is about to end";
    enter(id, record, lease);
    return "";
  }
  if (facts_.state() != pool::RoomRecord::State::serving) return "this host takes no new sessions now";
  if (facts_.sessions_taken() >= facts_.sessions_max) return all_sessions_taken(facts_.sessions_max, "this host");
  const Tenant* const tenant = leases_.tenants().find(record.tenant);
  if (!tenant) return fmt::format("this host has no tenant '{}'", record.tenant);
  auto granted = leases_.grant(*tenant, wish, job);
  if (const auto* const refusal = std::get_if<LeaseRefusal>(&granted)) return refusal->text;
  const auto& lease = std::get<std::shared_ptr<Lease>>(granted);
  enter(id, record, lease);
  entries_[id].kept = lease;
  entries_[id].until = Clock::now() + kept_for;
  EventLog::info("lease placed here", {{"placement", id},
                                       {"tenant", record.tenant},
                                       {"lease", lease->id},
                                       {"gpus", lease->devices.size()},
                                       {"program", record.program},
                                       {"client", record.client}});
  return "";
}

bool PoolHost::admit(const std::string& id, const pool::LeaseRecord& record) {
  if (entries_.contains(id)) return true;
  std::string reason = why_not(id, record);
  if (reason.empty()) return true;
  EventLog::info("placed lease refused", {{"placement", id}, {"tenant", record.tenant}, {"reason", reason}});
  if (refusals_.size() >= refusals_max) refusals_.clear();
  refusals_[id] = std::move(reason);
  return false;
}

void PoolHost::withdraw(const std::string& id) {
  const auto place = entries_.find(id);
  if (place == entries_.end()) return;
  const auto last = std::move(place->second.kept);  // the entry may go with it
}

void PoolHost::gone(const std::string& id) {
  const auto place = entries_.find(id);
  if (place == entries_.end()) return;
  const auto lease = place->second.lease.lock();  // none: it is about to be gone
  if (lease && static_cast<const Mark*>(lease->in_pool.get())->id() == id) return;
  entries_.erase(place);
  // The member may be in the middle of asking for this lease.
  asio::post(io_, [self = std::weak_ptr(self_), id] {
    if (const auto host = self.lock()) (*host)->member_.ended(id);
  });
}

void PoolHost::came(const std::shared_ptr<Lease>& lease) {
  if (Entry* const entry = entry_of(*lease)) {
    const auto last = std::move(entry->kept);
    return;
  }
  const pool::LeaseRecord record = record_of(*lease);
  const std::string id = random_name();
  enter(id, record, lease);
  member_.entered(id, record);
}

void PoolHost::give_up(const std::shared_ptr<Lease>& lease) {
  if (Entry* const entry = entry_of(*lease)) entry->kept.reset();  // the caller has it still
}

void PoolHost::sent(const std::string& placement, const std::string& tenant, std::vector<std::string> hosts) {
  sent_[placement] = {tenant, std::move(hosts), Clock::now() + kept_for};
}

void PoolHost::give_up(const std::string& placement, const std::string& tenant) {
  const auto place = sent_.find(placement);
  if (place == sent_.end() || place->second.tenant != tenant) return;
  member_.given_up(placement, place->second.hosts);
  sent_.erase(place);
}

asio::awaitable<std::string> PoolHost::find(std::string placement, std::string tenant, JobKey job) {
  if (leases_.find(tenant, job)) co_return "";
  const auto refused = refusals_.find(placement);
  if (refused != refusals_.end()) co_return refused->second;
  std::optional<pool::LeaseRecord> record;
  try {
    record = co_await member_.find(placement);
  } catch (const pool::RegistryError& error) {
    co_return fmt::format("the registry of pool '{}' does not answer this host: {}", options_.pool, error.what());
  }
  if (leases_.find(tenant, job)) co_return "";  // it has come meanwhile
  if (!record || record->tenant != tenant || record->job != text_of(job))
    co_return fmt::format("no lease is kept here for this placement; a lease is kept for {} s", kept_for.count());
  if (!admit(placement, *record)) {
    member_.ended(placement);
    co_return refusals_[placement];
  }
  member_.entered(placement, *record);
  co_return "";
}

// --- from time to time ----------------------------------------------------------------------------------------------

void PoolHost::look() {
  const auto now = Clock::now();
  std::vector<std::shared_ptr<Lease>> over;  // the end of a lease changes the entries
  for (auto& [id, entry] : entries_) {
    if (!entry.kept || entry.until > now) continue;
    EventLog::info("no client came", {{"placement", id}, {"tenant", entry.record.tenant}, {"lease", entry.kept->id}});
    over.push_back(std::move(entry.kept));
  }
  over.clear();
  std::erase_if(sent_, [&](const auto& one) { return one.second.until <= now; });
  if (member_.in_touch() && now - looked_at_ > view_again_after) last_view();
  const pool::RoomRecord here = room();
  if (much_differs(here, told_, leases_) || (now - told_at_ > tell_all_after && here != told_)) changed();
  look_.expires_after(look_interval);
  look_.async_wait([this](const asio::error_code& error) {
    if (!error) look();
  });
}

asio::awaitable<std::shared_ptr<const pool::PoolView>> PoolHost::view() {
  if (!member_.in_touch()) co_return view_;
  looked_at_ = Clock::now();
  try {
    view_ = co_await member_.view();
    view_at_ = Clock::now();
  } catch (const pool::RegistryError& error) {
    EventLog::debug("pool not seen", {{"reason", error.what()}});
  }
  co_return view_;
}

std::shared_ptr<const pool::PoolView> PoolHost::last_view() {
  if (!std::exchange(viewing_, true))
    asio::co_spawn(
        io_, [this]() -> asio::awaitable<void> { co_await view(); },
        [this](const std::exception_ptr&) { viewing_ = false; });
  return view_;
}

std::chrono::seconds PoolHost::view_age() const {
  return std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - view_at_);
}

}  // namespace fargpu::server
