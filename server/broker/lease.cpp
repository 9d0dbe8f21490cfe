#include "lease.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "protocol/text.h"

namespace fargpu::server {
namespace {

std::string share_text(std::uint64_t bytes, std::uint32_t percent) {
  std::string text;
  if (bytes != 0) text = bytes_text(bytes);
  if (percent != 0) text += fmt::format("{}{}%", text.empty() ? "" : " and ", percent);
  return text;
}

std::string each_of(std::size_t gpus) { return (gpus == 1 ? "" : "each of ") + so_many(gpus, "GPU"); }

constexpr std::uint64_t hundredths = 100;  // of a percent
std::uint64_t whole_percent(std::uint64_t compute) { return (compute + hundredths - 1) / hundredths; }

std::uint64_t left_of(std::uint64_t all, std::uint64_t held) { return all > held ? all - held : 0; }

}  // namespace

std::string all_sessions_taken(std::uint64_t sessions, std::string_view whose) {
  return sessions == 1 ? fmt::format("the only session of {} is taken; try later", whose)
                       : fmt::format("all {} sessions of {} are taken; try later", sessions, whose);
}

void Leases::set_tenants(Tenants tenants) {
  tenants_ = std::move(tenants);
  for (const auto& lease : all()) {
    if (const Tenant* const tenant = tenants_.find(lease->tenant)) lease->weight = tenant->weight;
    divide(lease->tenant);
  }
  tell();
}

std::vector<std::shared_ptr<Lease>> Leases::all() const {
  std::vector<std::shared_ptr<Lease>> result;
  for (const auto& [id, weak] : leases_)
    if (auto lease = weak.lock()) result.push_back(std::move(lease));
  return result;
}

std::shared_ptr<Lease> Leases::find(const std::string& tenant, const JobKey& job) const {
  for (const auto& lease : all())
    if (lease->job == job && lease->tenant == tenant) return lease;
  return nullptr;
}

// What it was promised counts, used or not; what has no promise counts as it is used.
std::uint64_t Leases::held(const Lease& lease, std::size_t device) const {
  return std::max(lease.memory_bytes, lease.account->held(lease.id, static_cast<int>(device)));
}

// What workers say that they hold counts for others as far as their tenant may hold it, by all its leases together.
std::uint64_t Leases::free_bytes(unsigned device) const {
  auto free = static_cast<std::uint64_t>(static_cast<double>(capacity_.at(device)) * oversubscription_);
  std::map<std::string, std::uint64_t> used;  // by tenants, of what no lease was promised
  for (const auto& lease : all()) {
    const auto place = std::find(lease->devices.begin(), lease->devices.end(), device);
    if (place == lease->devices.end()) continue;
    free = left_of(free, lease->memory_bytes);
    if (lease->memory_bytes != 0) continue;
    std::uint64_t& bytes = used[lease->tenant];
    bytes += std::min(held(*lease, static_cast<std::size_t>(place - lease->devices.begin())), ~bytes);
  }
  for (const auto& [name, bytes] : used) {
    const Tenant* const tenant = tenants_.find(name);
    free = left_of(free, tenant && tenant->memory_bytes != 0 ? std::min(bytes, tenant->memory_bytes) : bytes);
  }
  return free;
}

std::uint32_t Leases::free_percent(unsigned device) const {
  std::uint32_t taken = 0;
  for (const auto& lease : all())
    if (std::find(lease->devices.begin(), lease->devices.end(), device) != lease->devices.end())
      taken += lease->compute_percent;
  return taken < 100 ? 100 - taken : 0;
}

std::uint64_t Leases::compute_of(std::uint32_t percent, std::size_t groups, unsigned device) const {
  const std::uint64_t all = device < sm_groups_.size() ? sm_groups_[device] : 0;
  return std::max<std::uint64_t>(percent * hundredths, all == 0 ? 0 : groups * 100 * hundredths / all);
}

TenantUse Leases::use_of(const std::string& tenant) const {
  TenantUse use;
  for (const auto& lease : all()) {
    if (lease->tenant != tenant) continue;
    for (std::size_t device = 0; device < lease->devices.size(); ++device) {  // a worker may have written any number
      const std::uint64_t bytes = held(*lease, device);
      use.memory_bytes = bytes > ~use.memory_bytes ? ~std::uint64_t{0} : use.memory_bytes + bytes;
    }
    for (std::size_t place = 0; place < lease->devices.size(); ++place)
      use.compute += compute_of(lease->compute_percent, lease->sm_groups.empty() ? 0 : lease->sm_groups[place].size(),
                                lease->devices[place]);
    use.host_bytes = std::max(use.host_bytes, lease->account->held_of_host(lease->id));
    use.sessions += lease->sessions;
    ++use.leases;
  }
  return use;
}

std::shared_ptr<TenantAccount> Leases::account_of(const std::string& tenant) {
  std::weak_ptr<TenantAccount>& known = accounts_[tenant];
  auto account = known.lock();
  if (!account) known = account = std::make_shared<TenantAccount>(account_slots_);
  return account;
}

void Leases::divide(const std::string& name) {
  const auto account = accounts_[name].lock();
  const Tenant* const tenant = tenants_.find(name);
  if (!account || !tenant) return;  // sessions of a tenant that is no more keep the limits that they had
  account->set_host_max(tenant->host_bytes != 0 ? tenant->host_bytes : TenantAccount::no_limit);
  account->set_bandwidth(tenant->bandwidth != 0 ? tenant->bandwidth : TenantAccount::no_limit);
  if (tenant->memory_bytes == 0) {
    account->set_unreserved_max(TenantAccount::no_limit);
    return;
  }
  std::uint64_t left = tenant->memory_bytes;
  for (const auto& lease : all())
    if (lease->tenant == name) left = left_of(left, lease->memory_bytes * lease->devices.size());
  account->set_unreserved_max(left);
}

LeaseSession::~LeaseSession() {
  lease_->account->end(slot_);
  --lease_->sessions;
  lease_.reset();  // which may be its end, and then there is room for others
  ended_();
}

std::shared_ptr<Waiter> Leases::wait(const Tenant& tenant, const LeaseWish& wish) {
  std::shared_ptr<Waiter> waiter(new Waiter{.tenant = tenant.name, .wish = wish}, [this](Waiter* gone) {
    queue_.remove(gone);
    order_.clear();
    delete gone;
    tell();
  });
  queue_.push_back(waiter.get());
  order_.clear();
  return waiter;
}

// Each one's number among those of its tenant comes first, then when it came. Kept, because all that wait look again
// whenever something ends.
const std::vector<Leases::Turn>& Leases::order() const {
  if (!order_.empty() || queue_.empty()) return order_;
  std::map<std::string_view, std::size_t> of_tenant;
  for (Waiter* const waiter : queue_) order_.push_back({of_tenant[waiter->tenant]++, waiter});
  std::stable_sort(order_.begin(), order_.end(), [](const Turn& a, const Turn& b) { return a.number < b.number; });
  return order_;
}

std::span<const Leases::Turn> Leases::those_before(const Waiter* place, const std::string& tenant) const {
  const std::vector<Turn>& all = order();
  if (place)
    return {all.begin(), std::find_if(all.begin(), all.end(), [&](const Turn& turn) { return turn.waiter == place; })};
  const auto of_tenant = [&](const Turn& turn) { return turn.waiter->tenant == tenant; };
  const auto own = static_cast<std::size_t>(std::count_if(all.begin(), all.end(), of_tenant));  // the last of all
  return {all.begin(), std::find_if(all.begin(), all.end(), [&](const Turn& turn) { return turn.number > own; })};
}

std::size_t Leases::before(const Waiter* place, const std::string& tenant, Shortage shortage) const {
  const auto list = those_before(place, tenant);
  return static_cast<std::size_t>(
      std::count_if(list.begin(), list.end(), [&](const Turn& turn) { return turn.waiter->shortage == shortage; }));
}

std::vector<unsigned> Leases::allowed(const Tenant& tenant) const {
  std::vector<unsigned> devices = tenant.devices;
  if (devices.empty()) {
    devices.resize(capacity_.size());
    std::iota(devices.begin(), devices.end(), 0u);
  }
  std::erase_if(devices, [&](unsigned device) { return device >= capacity_.size(); });
  return devices;
}

// Whole groups, so that leases of 100% together always have room. That one has at least one is why it may be lacking.
unsigned Leases::wanted_groups(const Tenant& tenant, const LeaseWish& wish, unsigned device) const {
  return tenant.sm_partitions ? std::max(1u, wish.compute_percent * sm_groups_.at(device) / 100) : 0;
}

// Groups of a device that no lease has by the tenant's MPS daemon: tenants with one daemon share devices.
std::vector<unsigned> Leases::free_groups(const Tenant& tenant, unsigned device) const {
  std::vector<unsigned> free;
  if (!tenant.sm_partitions) return free;
  free.resize(sm_groups_.at(device));
  std::iota(free.begin(), free.end(), 0u);
  for (const auto& lease : all()) {
    if (lease->mps != tenant.mps || lease->sm_groups.empty()) continue;
    const auto place = std::find(lease->devices.begin(), lease->devices.end(), device);
    if (place == lease->devices.end()) continue;
    const auto& taken = lease->sm_groups.at(static_cast<std::size_t>(place - lease->devices.begin()));
    std::erase_if(free, [&](unsigned group) { return std::find(taken.begin(), taken.end(), group) != taken.end(); });
  }
  return free;
}

Leases::Spare Leases::spare(const Tenant& asking, std::span<const Turn> before) const {
  Spare spare;
  for (unsigned device = 0; device < capacity_.size(); ++device) {
    spare.bytes.push_back(free_bytes(device));
    spare.percent.push_back(free_percent(device));
    spare.sm_groups.push_back(static_cast<unsigned>(free_groups(asking, device).size()));
  }
  for (const auto& [number, waiter] : before) {
    const Tenant* const tenant = tenants_.find(waiter->tenant);
    if (waiter->shortage != Shortage::devices || !tenant) continue;
    const LeaseWish& wish = waiter->wish;
    const bool same_groups = asking.sm_partitions && tenant->mps == asking.mps;
    const auto groups = [&](unsigned device) { return same_groups ? wanted_groups(*tenant, wish, device) : 0; };
    std::vector<unsigned> devices = allowed(*tenant);
    std::erase_if(devices, [&](unsigned device) { return capacity_[device] < wish.memory_bytes; });
    const std::size_t count = std::min<std::size_t>(wish.gpus == 0 ? devices.size() : wish.gpus, devices.size());
    const bool still = waiter->devices.size() == count &&
                       std::all_of(waiter->devices.begin(), waiter->devices.end(), [&](unsigned device) {
                         return std::find(devices.begin(), devices.end(), device) != devices.end();
                       });
    if (!still) {
      std::stable_sort(devices.begin(), devices.end(), [&](unsigned a, unsigned b) {
        return std::pair(spare.fits(a, wish, groups(a)), spare.bytes[a]) >
               std::pair(spare.fits(b, wish, groups(b)), spare.bytes[b]);
      });
      devices.resize(count);
      waiter->devices = std::move(devices);
    }
    for (const unsigned device : waiter->devices) {
      spare.bytes[device] = left_of(spare.bytes[device], wish.memory_bytes);
      spare.percent[device] -= std::min(spare.percent[device], wish.compute_percent);
      spare.sm_groups[device] -= std::min(spare.sm_groups[device], groups(device));
    }
  }
  return spare;
}

std::optional<LeaseRefusal> Leases::sessions_taken(const Tenant& tenant, const Waiter* place) const {
  if (tenant.sessions_max == 0) return std::nullopt;
  const auto list = those_before(place, tenant.name);
  const auto waiting = std::count_if(list.begin(), list.end(), [&](const Turn& turn) {
    return turn.waiter->tenant == tenant.name && turn.waiter->shortage == Shortage::tenant_sessions;
  });
  if (use_of(tenant.name).sessions + static_cast<std::size_t>(waiting) < tenant.sessions_max) return std::nullopt;
  return LeaseRefusal{true, all_sessions_taken(tenant.sessions_max, fmt::format("tenant '{}'", tenant.name)),
                      Shortage::tenant_sessions};
}

std::variant<std::unique_ptr<LeaseSession>, LeaseRefusal> Leases::begin_session(const std::shared_ptr<Lease>& lease,
                                                                                const Waiter* place) {
  const Tenant* const tenant = tenants_.find(lease->tenant);
  if (!tenant) return LeaseRefusal{false, fmt::format("this host has no tenant '{}' any more", lease->tenant)};
  if (auto refusal = sessions_taken(*tenant, place)) return std::move(*refusal);
  const std::size_t slot = lease->account->begin(lease->id, lease->memory_bytes == 0);
  if (slot == lease->account->slots())
    return LeaseRefusal{true, "all sessions of this host are taken; try later", Shortage::host_sessions};
  return std::make_unique<LeaseSession>(lease, slot, [this] { tell(); });
}

Leases::Answer Leases::grant(const Tenant& tenant, const LeaseWish& wish, const std::optional<JobKey>& job,
                             const Waiter* place) {
  if (job)
    if (auto lease = find(tenant.name, *job)) return lease;
  const auto never = [](std::string text) { return LeaseRefusal{false, std::move(text)}; };
  if (leases_.size() + before(place, tenant.name, Shortage::host_sessions) >= account_slots_)
    return LeaseRefusal{true, "this host has granted as many leases as it can; try later", Shortage::host_sessions};
  if (capacity_.empty()) return LeaseRefusal{true, "this host does not know its devices yet; try later"};
  if (wish.compute_percent > 100) return never("compute is a share of each device, 1 to 100%");
  if (wish.priority && rank(*wish.priority) > rank(tenant.priority)) {
    return never(fmt::format("tenant '{}' may not ask for priority {}, at most for {}", tenant.name,
                             text_of(*wish.priority), text_of(tenant.priority)));
  }
  const std::vector<unsigned> allowed = this->allowed(tenant);
  const std::size_t count = wish.gpus == 0 ? allowed.size() : wish.gpus;
  if (allowed.empty()) return never(fmt::format("none of this host's devices is for tenant '{}'", tenant.name));
  if (count > allowed.size()) {
    return never(
        fmt::format("{} GPUs are asked for, but this host has {} for tenant '{}'", count, allowed.size(), tenant.name));
  }
  if (tenant.sm_partitions && wish.compute_percent == 0) {
    return never(
        fmt::format("leases of tenant '{}' have multiprocessors of their own (sm_partitions), as many as their "
                    "percentage says; ask for one, "
                    "by -c or FARGPU_COMPUTE",
                    tenant.name));
  }
  for (const unsigned device : allowed) {
    if (tenant.sm_partitions && sm_groups_[device] == 0)
      return never(
          fmt::format("the multiprocessors of GPU {} cannot be divided among leases of tenant '{}' (sm_partitions): "
                      "the driver of this host "
                      "makes no groups of {} of them",
                      device, tenant.name, sm_group_size));
  }

  // What could never be had, whichever leases end.
  const auto large = static_cast<std::size_t>(std::count_if(
      allowed.begin(), allowed.end(), [&](unsigned device) { return capacity_[device] >= wish.memory_bytes; }));
  if (large < count) {
    std::string all;
    for (const unsigned device : allowed)
      all += fmt::format("{}GPU {}: {}", all.empty() ? "" : ", ", device, bytes_text(capacity_[device]));
    return never(fmt::format("{} of memory on {} is asked for, but there are {}; ask for less{}",
                             bytes_text(wish.memory_bytes), each_of(count), all,
                             large > 0 ? ", or for fewer GPUs" : ""));
  }
  const std::uint64_t bytes = wish.memory_bytes * count;  // each is at most a device's
  if (tenant.memory_bytes != 0 && bytes > tenant.memory_bytes) {
    return never(fmt::format("{} of memory is asked for, but tenant '{}' may have {}", bytes_text(bytes), tenant.name,
                             bytes_text(tenant.memory_bytes)));
  }
  // A group of multiprocessors may be more than the percentage that is asked for. Which devices it will be is not known
  // yet.
  const auto compute_for = [&](const LeaseWish& wanted) {
    std::uint64_t most = 0;
    for (const unsigned device : allowed)
      most = std::max(most, compute_of(wanted.compute_percent, wanted_groups(tenant, wanted, device), device));
    return most;
  };
  const std::uint64_t compute = compute_for(wish) * count, compute_max = tenant.compute_percent * hundredths;
  if (tenant.compute_percent != 0 && compute > compute_max) {
    return never(fmt::format("{}% of compute is asked for{}, but tenant '{}' may have {}%", whole_percent(compute),
                             compute > wish.compute_percent * count * hundredths
                                 ? " with a group of multiprocessors, the least there is (sm_partitions)"
                                 : "",
                             tenant.name, tenant.compute_percent));
  }

  // What is taken now, by leases and by jobs that have waited longer.
  const std::span<const Turn> earlier = those_before(place, tenant.name);
  TenantUse use = use_of(tenant.name);
  for (const auto& [number, waiter] : earlier) {
    if (waiter->shortage != Shortage::quota || waiter->tenant != tenant.name) continue;
    const std::size_t gpus = waiter->wish.gpus == 0 ? allowed.size() : waiter->wish.gpus;
    use.memory_bytes += waiter->wish.memory_bytes * gpus;
    use.compute += compute_for(waiter->wish) * gpus;
  }
  const auto too_much = [&](std::uint64_t held) {
    return LeaseRefusal{true,
                        fmt::format("tenant '{}' holds {} of its {} of memory, and {} more is asked for; try later",
                                    tenant.name, bytes_text(held), bytes_text(tenant.memory_bytes), bytes_text(bytes)),
                        Shortage::quota};
  };
  if (tenant.memory_bytes != 0 && bytes > left_of(tenant.memory_bytes, use.memory_bytes))
    return too_much(use.memory_bytes);
  if (tenant.compute_percent != 0 && compute > left_of(compute_max, use.compute)) {
    return LeaseRefusal{
        true,
        fmt::format("tenant '{}' holds {}% of its {}% of compute, and {}% more is asked for; try later", tenant.name,
                    whole_percent(use.compute), tenant.compute_percent, whole_percent(compute)),
        Shortage::quota};
  }
  const Spare left = spare(tenant, earlier);
  std::vector<unsigned> fitting;
  std::string free;
  for (const unsigned device : allowed) {
    if (capacity_[device] >= wish.memory_bytes && left.fits(device, wish, wanted_groups(tenant, wish, device)))
      fitting.push_back(device);
    free += fmt::format("{}GPU {} has {} and {}%", free.empty() ? "" : ", ", device, bytes_text(left.bytes[device]),
                        left.percent[device]);
    if (tenant.sm_partitions)
      free += fmt::format(" and {} of {} of {} multiprocessors", left.sm_groups[device],
                          so_many(sm_groups_[device], "group"), sm_group_size);
  }
  if (fitting.size() < count) {
    return LeaseRefusal{true,
                        fmt::format("{} on {} is asked for, but {} free{}; try later",
                                    share_text(wish.memory_bytes, wish.compute_percent), each_of(count), free,
                                    earlier.empty() ? "" : ", less what is kept for those that wait already"),
                        Shortage::devices};
  }
  std::stable_sort(fitting.begin(), fitting.end(),
                   [&](unsigned a, unsigned b) { return left.bytes[a] > left.bytes[b]; });
  fitting.resize(count);
  std::sort(fitting.begin(), fitting.end());
  auto lease = make(tenant, wish, std::move(fitting), job);
  // A worker that has charged meanwhile by the bound of before is seen now; one that charges later sees the new bound.
  const std::uint64_t held = use_of(tenant.name).memory_bytes;
  if (tenant.memory_bytes == 0 || bytes == 0 || held <= tenant.memory_bytes) return lease;
  lease->passing = true;
  lease.reset();
  return too_much(held - bytes);
}

std::shared_ptr<Lease> Leases::make(const Tenant& tenant, const LeaseWish& wish, std::vector<unsigned> devices,
                                    const std::optional<JobKey>& job) {
  Lease lease;
  lease.id = next_id_++;
  lease.tenant = tenant.name;
  lease.devices = std::move(devices);
  lease.memory_bytes = wish.memory_bytes;
  lease.compute_percent = wish.compute_percent;
  lease.priority = wish.priority.value_or(
      rank(tenant.priority) < rank(wire::Priority::NORMAL) ? tenant.priority : wire::Priority::NORMAL);
  lease.job = job;
  lease.mps = tenant.mps;
  for (const unsigned device : lease.devices) {
    if (!tenant.sm_partitions) break;
    lease.sm_groups.push_back(free_groups(tenant, device));
    lease.sm_groups.back().resize(wanted_groups(tenant, wish, device));
  }
  lease.account = account_of(tenant.name);
  return enter(std::move(lease));
}

std::shared_ptr<Lease> Leases::enter(Lease facts) {
  const std::shared_ptr<Lease> lease(new Lease(std::move(facts)), [this](Lease* gone) {
    const std::string name = gone->tenant;
    const bool passing = gone->passing;
    leases_.erase(gone->id);
    delete gone;
    divide(name);
    if (!passing) tell();
  });
  if (const Tenant* const tenant = tenants_.find(lease->tenant)) {
    lease->weight = tenant->weight;
    lease->kernel_seconds_max = tenant->kernel_seconds_max;
    lease->resume_seconds = tenant->resume_seconds;
  }
  lease->among_tenants = tenants_.configured();
  leases_[lease->id] = lease;
  divide(lease->tenant);
  return lease;
}

std::unique_ptr<LeaseSession> Leases::take_over(Lease facts, std::shared_ptr<TenantAccount> account, std::size_t slot,
                                                std::string& why_not) {
  std::weak_ptr<TenantAccount>& known = accounts_[facts.tenant];
  if (const auto has = known.lock(); has && !has->same_memory(*account)) {
    why_not = "its tenant's other sessions have another account";
    return nullptr;
  } else if (has) {
    account = has;
  }
  if (slot >= account->slots() || account->taken_over(slot)) {
    why_not = "its place in the tenant's account is another's";
    return nullptr;
  }
  const auto place = leases_.find(facts.id);
  std::shared_ptr<Lease> lease = place == leases_.end() ? nullptr : place->second.lock();
  if (lease && (lease->tenant != facts.tenant || lease->devices != facts.devices)) {
    why_not = fmt::format("there is another lease {}", facts.id);
    return nullptr;
  }
  known = account;
  account->take_over(slot, facts.id, facts.memory_bytes == 0);
  next_id_ = std::max(next_id_, facts.id + 1);
  facts.account = std::move(account);
  if (!lease) lease = enter(std::move(facts));
  return std::make_unique<LeaseSession>(lease, slot, [this] { tell(); });
}

void Leases::all_taken_over(bool all) {
  for (const auto& [tenant, weak] : accounts_) {
    const auto account = weak.lock();
    if (account) next_id_ = std::max(next_id_, account->all_taken_over(all) + 1);
  }
}

std::shared_ptr<void> Leases::watch(std::function<void()> changed) {
  const auto place = watchers_.insert(watchers_.end(), std::move(changed));
  return {nullptr, [this, place](void*) { watchers_.erase(place); }};
}

void Leases::tell() {
  for (const auto& watcher : watchers_) watcher();
}

}  // namespace fargpu::server
