#include "placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "protocol/text.h"

namespace fargpu::server::pool {
namespace {

// By how much a request of a tenant of weight 1 puts its next one back.
constexpr std::uint64_t turn = 1'000'000;
// Load of a host is told in such parts of a device.
constexpr std::uint64_t load_unit = 1'000;

template <class Number>
Number left_of(Number all, Number taken) {
  return all > taken ? all - taken : 0;
}

std::string wish_text(const RequestRecord& wish) {
  std::string text = wish.gpus == 0 ? "all GPUs of a host" : so_many(wish.gpus, "GPU");
  if (wish.memory_bytes > 0) text += " with " + bytes_text(wish.memory_bytes);
  if (wish.compute_percent > 0)
    text += fmt::format("{}{}% of compute", wish.memory_bytes > 0 ? " and " : " with ", wish.compute_percent);
  if (wish.hosts > 1) text += fmt::format(" of at most {} hosts", wish.hosts);
  return text;
}

// Of what is limited.
std::string use_text(const Limits& limits, std::uint64_t memory_bytes, std::uint64_t compute_percent,
                     std::uint64_t leases) {
  std::vector<std::string> parts;
  if (limits.memory_bytes != 0) parts.push_back(bytes_text(memory_bytes));
  if (limits.compute_percent != 0) parts.push_back(fmt::format("{}% of compute", compute_percent));
  if (limits.leases != 0) parts.push_back(so_many(leases, "lease"));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string limits_text(const Limits& limits) {
  return use_text(limits, limits.memory_bytes, limits.compute_percent, limits.leases);
}

}  // namespace

// --- what the registry says -----------------------------------------------------------------------------------------

void Placement::set_host(const std::string& name, HostRecord record, std::int64_t lifetime) {
  fresh_ = true;
  Host& host = change(name);
  host.record = std::move(record);
  host.lifetime = lifetime;
  there_ += !std::exchange(host.there, true);
  host.doubted = false;
  obstacles_.clear();
}

void Placement::set_room(const std::string& name, RoomRecord room) {
  fresh_ = true;
  change(name).room = std::move(room);
}

void Placement::erase_host(const std::string& name) {
  fresh_ = true;
  there_ -= std::exchange(change(name).there, false);
  obstacles_.clear();
  forget_if_empty(name);
}

void Placement::set_known(const std::string& name, HostRecord record) {
  fresh_ = true;
  Host& host = change(name);
  host.known = true;
  if (!host.there) host.record = std::move(record);
  obstacles_.clear();
}

void Placement::erase_known(const std::string& name) {
  fresh_ = true;
  change(name).known = false;
  obstacles_.clear();
  forget_if_empty(name);
}

void Placement::erase_room(const std::string& name) {
  change(name).room.reset();
  forget_if_empty(name);
}

void Placement::forget_if_empty(const std::string& name) {
  const auto place = hosts_.find(name);
  if (place == hosts_.end()) return;
  const Host& host = place->second;
  if (host.there || host.known || host.room || !host.leases.empty()) return;
  by_load_.erase({place->second.rank, name});
  hosts_.erase(place);
}

Placement::Host& Placement::change(const std::string& name) {
  changed_.insert(name);
  return hosts_[name];
}

void Placement::rank(const std::string& name, Host& host) {
  by_load_.erase({host.rank, name});
  host.rank = host.spare.load * load_unit / std::max<std::size_t>(host.record.devices.size(), 1);
  by_load_[{host.rank, name}] = &host;
}

Placement::Use Placement::use_of(const LeaseRecord& lease) {
  return {lease.memory_bytes * lease.gpus, std::uint64_t{lease.compute_percent} * lease.gpus, 1};
}

void Placement::add(Use& use, const Use& more) {
  use.memory_bytes += more.memory_bytes;
  use.compute_percent += more.compute_percent;
  use.leases += more.leases;
}

void Placement::subtract(Use& use, const Use& less) {
  use.memory_bytes -= less.memory_bytes;
  use.compute_percent -= less.compute_percent;
  use.leases -= less.leases;
}

bool Placement::exceeds(const Limits& limits, const Use& use) {
  return (limits.memory_bytes != 0 && use.memory_bytes > limits.memory_bytes) ||
         (limits.compute_percent != 0 && use.compute_percent > limits.compute_percent) ||
         (limits.leases != 0 && use.leases > limits.leases);
}

void Placement::set_lease(const std::string& host_name, const std::string& id, LeaseRecord lease,
                          std::int64_t created) {
  Host& host = change(host_name);
  if (const auto known = host.leases.find(id); known != host.leases.end()) {
    if (known->second.created == created && known->second.record == lease) return;
    erase_lease(host_name, id);
    return set_lease(host_name, id, std::move(lease), created);  // the host may have gone with it
  }
  add(host.uses[lease.tenant], use_of(lease));
  add(uses_[lease.tenant], use_of(lease));
  host.leases.emplace(id, PlacedLease{std::move(lease), created});
  ++leases_;
}

void Placement::erase_lease(const std::string& host_name, const std::string& id) {
  const auto host = hosts_.find(host_name);
  if (host == hosts_.end()) return;
  const auto lease = host->second.leases.find(id);
  if (lease == host->second.leases.end()) return;
  const LeaseRecord& record = lease->second.record;
  subtract(host->second.uses[record.tenant], use_of(record));
  if (host->second.uses[record.tenant].leases == 0) host->second.uses.erase(record.tenant);
  subtract(uses_[record.tenant], use_of(record));
  if (uses_[record.tenant].leases == 0) uses_.erase(record.tenant);
  host->second.leases.erase(lease);
  --leases_;
  fresh_ = true;
  change(host_name);
  forget_if_empty(host_name);
}

void Placement::set_tenant(const std::string& name, TenantRecord record) {
  fresh_ = true;
  tenants_[name] = record;
}

void Placement::erase_tenant(const std::string& name) {
  fresh_ = true;
  tenants_.erase(name);
}

// Its place in the queue is by a tag of fair queueing: the time at which it would be over if each tenant were served at
// the rate of its weight. A tenant that has asked for nothing for long begins with the present.
void Placement::set_request(const std::string& id, RequestRecord record, std::int64_t created, Clock::time_point now) {
  fresh_ = true;
  if (const auto place = requests_.find(id); place != requests_.end()) {
    place->second.record = std::move(record);
    return;
  }
  const auto tenant = tenants_.find(record.tenant);
  const std::uint64_t weight = tenant == tenants_.end() ? TenantRecord().weight : tenant->second.weight;
  const auto last = last_tag_.find(record.tenant);
  const std::uint64_t tag = std::max(last == last_tag_.end() ? 0 : last->second, virtual_time_) +
                            turn / std::clamp<std::uint64_t>(weight, 1, weight_max);
  // One that is refused at once takes no turn of its tenant's; one that is served does (decide()).
  if (record.waits) last_tag_[record.tenant] = tag;
  order_.insert({{tag, created}, id});
  requests_.emplace(id, Waiting{std::move(record), created, tag, now, {}, {}});
}

void Placement::erase_request(const std::string& id) {
  const auto place = requests_.find(id);
  if (place == requests_.end()) return;
  const std::string tenant = place->second.record.tenant;
  fresh_ = fresh_ || !place->second.claimed.empty();
  order_.erase({{place->second.tag, place->second.created}, id});
  requests_.erase(place);
  if (const auto last = last_tag_.find(tenant); last != last_tag_.end() && last->second <= virtual_time_)
    last_tag_.erase(last);
}

std::int64_t Placement::lifetime_of(const std::string& host) const {
  const auto place = hosts_.find(host);
  return place == hosts_.end() ? 0 : place->second.lifetime;
}

// --- hosts ----------------------------------------------------------------------------------------------------------

bool Placement::serves(const Host& host, const std::string& tenant) {
  return host.there && !host.doubted && host.room && host.room->state == RoomRecord::State::serving &&
         (!host.record.names_tenants || host.record.tenants.contains(tenant));
}

std::vector<unsigned> Placement::allowed(const Host& host, const std::string& tenant) {
  const auto limited = host.record.tenants.find(tenant);
  std::vector<unsigned> devices;
  if (limited != host.record.tenants.end() && !limited->second.devices.empty()) {
    devices = limited->second.devices;
  } else {
    devices.resize(host.record.devices.size());
    std::iota(devices.begin(), devices.end(), 0u);
  }
  std::erase_if(devices, [&](unsigned device) { return device >= host.record.devices.size(); });
  return devices;
}

// The devices with most room, as the host itself chooses them.
void Placement::take(Spare& spare, const std::vector<unsigned>& allowed, unsigned devices, const LeaseRecord& lease) {
  std::vector<unsigned> best = allowed;
  std::erase_if(best, [&](unsigned device) { return device >= spare.devices.size(); });
  std::stable_sort(best.begin(), best.end(), [&](unsigned a, unsigned b) {
    const Device &one = spare.devices[a], &other = spare.devices[b];
    return std::pair(one.percent >= lease.compute_percent, one.bytes) >
           std::pair(other.percent >= lease.compute_percent, other.bytes);
  });
  if (devices != 0 && best.size() > devices) best.resize(devices);
  for (const unsigned device : best) {
    spare.devices[device].bytes = left_of(spare.devices[device].bytes, lease.memory_bytes);
    spare.devices[device].percent = left_of(spare.devices[device].percent, lease.compute_percent);
  }
  spare.note_most();
  spare.sessions = left_of<std::uint64_t>(spare.sessions, 1);
  ++spare.load;
}

void Placement::Spare::note_most() {
  most_bytes = 0;
  most_percent = 0;
  for (const Device& device : devices) {
    most_bytes = std::max(most_bytes, device.bytes);
    most_percent = std::max(most_percent, device.percent);
  }
}

// What each host has told, less what was placed since.
void Placement::prepare() {
  for (const std::string& name : changed_) {
    const auto place = hosts_.find(name);
    if (place == hosts_.end()) continue;
    Host& host = place->second;
    host.spare = {};
    if (host.there && host.room) {
      host.spare.sessions = host.room->sessions;
      host.spare.load = host.room->load;
      host.spare.devices.resize(std::min(host.record.devices.size(), host.room->devices.size()));
      for (std::size_t device = 0; device < host.spare.devices.size(); ++device)
        host.spare.devices[device] = {host.room->devices[device].bytes, host.room->devices[device].percent};
      host.spare.note_most();
      for (const auto& [id, lease] : host.leases)
        if (lease.created > host.room->seen)
          take(host.spare, allowed(host, lease.record.tenant), lease.record.gpus, lease.record);
    }
    rank(name, host);
  }
  changed_.clear();
}

// For these decisions alone: at the next ones what the registry says counts.
void Placement::take(const std::string& name, Host& host, unsigned devices, const LeaseRecord& lease) {
  take(host.spare, allowed(host, lease.tenant), devices, lease);
  rank(name, host);
  change(name);
}

unsigned Placement::can_give(const Host& host, const RequestRecord& wish, Taken taken) const {
  return fit(host, wish, taken).within_limits;
}

Placement::Fit Placement::fit(const Host& host, const RequestRecord& wish, Taken taken) const {
  const bool now = taken == Taken::all, unused = taken == Taken::nothing || taken == Taken::absence;
  if (now && (host.spare.most_bytes < std::max<std::uint64_t>(wish.memory_bytes, 1) ||
              host.spare.most_percent < wish.compute_percent || host.spare.sessions == 0))
    return {};
  const bool counts = unused ? host.there || (host.known && taken == Taken::absence) : serves(host, wish.tenant);
  if (!counts) return {};
  const auto limited = host.record.tenants.find(wish.tenant);
  if (host.record.names_tenants && limited == host.record.tenants.end()) return {};
  unsigned fit = 0, all = 0;
  const std::uint64_t bytes = std::max<std::uint64_t>(wish.memory_bytes, 1);
  const auto look_at = [&](unsigned device) {
    if (device >= host.record.devices.size()) return;
    ++all;
    if (!now) fit += host.record.devices[device].bytes >= bytes;
    else
      fit += device < host.spare.devices.size() && host.spare.devices[device].bytes >= bytes &&
             host.spare.devices[device].percent >= wish.compute_percent;
  };
  if (limited != host.record.tenants.end() && !limited->second.devices.empty())
    for (const unsigned device : limited->second.devices) look_at(device);
  else
    for (unsigned device = 0; device < host.record.devices.size(); ++device) look_at(device);
  Fit result{fit, fit};
  if (limited != host.record.tenants.end()) {
    Use use;
    if (const auto has = host.uses.find(wish.tenant); !unused && has != host.uses.end()) use = has->second;
    ++use.leases;
    for (unsigned& gpus = result.within_limits; gpus > 0; --gpus) {
      Use with = use;
      with.memory_bytes += wish.memory_bytes * gpus;
      with.compute_percent += std::uint64_t{wish.compute_percent} * gpus;
      if (!exceeds(limited->second.limits, with)) break;
    }
  }
  // All GPUs of a host, or none of it.
  for (unsigned* const gpus : {&result.devices, &result.within_limits})
    if (wish.gpus == 0 && *gpus < all) *gpus = 0;
  return result;
}

std::string Placement::limit_in_the_way(const RequestRecord& wish, Taken taken) const {
  const unsigned enough = wish.hosts > 1 ? 1 : std::max(wish.gpus, 1u);
  for (const auto& [name, host] : hosts_) {
    if (!host.record.tenants.contains(wish.tenant) || !suits(name, wish)) continue;
    const Fit here = fit(host, wish, taken);
    if (here.devices < enough || here.within_limits >= enough) continue;
    const Limits& limits = host.record.tenants.at(wish.tenant).limits;
    const auto has = host.uses.find(wish.tenant);
    const Use use = has == host.uses.end() ? Use() : has->second;
    const std::string has_there =
        taken == Taken::all ? ", and has " + use_text(limits, use.memory_bytes, use.compute_percent, use.leases) : "";
    return fmt::format("; by the settings of host {}, tenant '{}' may have {} there{}", name, wish.tenant,
                       limits_text(limits), has_there);
  }
  return "";
}

std::string Placement::drained_in_the_way(const RequestRecord& wish) const {
  constexpr std::size_t told_max = 3;
  const unsigned enough = wish.hosts > 1 ? 1 : std::max(wish.gpus, 1u);
  std::vector<std::string> names;
  for (const auto& [name, host] : hosts_)
    if (names.size() < told_max && host.there && host.room && host.room->state != RoomRecord::State::serving &&
        suits(name, wish) && can_give(host, wish, Taken::nothing) >= enough)
      names.push_back(name);
  if (names.empty()) return "";
  return fmt::format(", and {} {} no new sessions now", fmt::join(names, " and "),
                     names.size() == 1 ? "takes" : "take");
}

bool Placement::comes_last(const std::string& name, const RequestRecord& wish) {
  return std::ranges::find(wish.doubted, name) != wish.doubted.end();
}

bool Placement::suits(const std::string& name, const RequestRecord& wish) const {
  if (wish.only_front && name != wish.front) return false;
  const auto lacks = [&](const std::vector<std::string>& names) {
    return std::ranges::find(names, name) == names.end();
  };
  return lacks(wish.avoid) && lacks(wish.unreached);
}

// --- deciding -------------------------------------------------------------------------------------------------------

// One host before several, the least loaded before others, and before hosts that this client may not reach.
bool Placement::choose(const RequestRecord& wish, Taken taken, Verdict& verdict) {
  struct Candidate {
    const std::string* name;
    Host* host;
    unsigned gives;
  };
  const auto part = [&](const std::string& name, Host& host, unsigned gpus) {
    verdict.parts.emplace_back(&host, gpus);
    verdict.names.push_back(name);
  };
  const auto alone = [&](const std::string& name, Host& host, unsigned gives, const char* why) {
    part(name, host, wish.gpus == 0 ? gives : wish.gpus);
    verdict.text = fmt::format("{} at {}, {}, with {} for {}", so_many(verdict.parts[0].second, "GPU"), name, why,
                               so_many(host.spare.load, "session"), so_many(host.record.devices.size(), "GPU"));
    return true;
  };
  const bool spread = wish.gpus == 0 && wish.hosts > 1;  // all GPUs of several hosts
  const unsigned enough = std::max(wish.gpus, 1u);
  if (const auto front = hosts_.find(wish.front);
      wish.prefers_front && !spread && front != hosts_.end() && suits(wish.front, wish)) {
    if (const unsigned gives = can_give(front->second, wish, taken); gives >= enough)
      return alone(wish.front, front->second, gives, "which was asked");
  }
  std::vector<Candidate> candidates;
  std::optional<Candidate> last;
  std::uint64_t all = 0;
  for (const auto& [place, at] : by_load_) {
    const std::string& name = place.second;
    if (!suits(name, wish)) continue;
    Host& host = *at;
    const unsigned gives = can_give(host, wish, taken);
    if (gives == 0) continue;
    if (gives >= enough && !spread) {
      if (!comes_last(name, wish)) return alone(name, host, gives, "the least loaded that has room");
      if (!last) last = {&name, &host, gives};
    }
    all += gives;
    candidates.push_back({&name, &host, gives});
  }
  const auto several = [&](const std::vector<Candidate>& of) {
    unsigned missing = wish.gpus;
    for (const Candidate& candidate : of) {
      if ((!spread && missing == 0) || verdict.parts.size() == std::min<std::size_t>(wish.hosts, parts_max)) break;
      const unsigned share = spread ? candidate.gives : std::min(missing, candidate.gives);
      missing -= std::min(missing, share);
      part(*candidate.name, *candidate.host, share);
    }
    if (missing == 0 && !verdict.parts.empty()) {
      verdict.text =
          fmt::format("{} at {}, as no host alone has room for all",
                      so_many(std::accumulate(verdict.parts.begin(), verdict.parts.end(), 0u,
                                              [](unsigned sum, const auto& one) { return sum + one.second; }),
                              "GPU"),
                      so_many(verdict.parts.size(), "host"));
      return true;
    }
    verdict.parts.clear();
    verdict.names.clear();
    return false;
  };
  const auto sure = [&](const Candidate& one) { return !comes_last(*one.name, wish); };
  if (spread) {
    std::ranges::stable_partition(candidates, sure);
  } else if (wish.hosts > 1) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& one, const Candidate& other) { return one.gives > other.gives; });
    std::vector<Candidate> of_sure;
    std::ranges::copy_if(candidates, std::back_inserter(of_sure), sure);
    if (several(of_sure)) return true;
  }
  if (last) return alone(*last->name, *last->host, last->gives, "which this client may not reach, for want of others");
  if (wish.hosts > 1 && several(candidates)) return true;
  const std::string limit = limit_in_the_way(wish, taken);
  verdict.text =
      taken == Taken::nothing
          ? fmt::format("no host of the pool could ever give {}{}; ask for less, or for GPUs of more hosts",
                        wish_text(wish), limit)
          : fmt::format("{} {} asked for, but the hosts of the pool have {} free that would do{}{}{}; try later",
                        wish_text(wish), wish.gpus == 1 ? "is" : "are", so_many(all, "GPU"),
                        all >= std::max(wish.gpus, 1u) ? ", on too many hosts" : "",
                        taken == Taken::all ? drained_in_the_way(wish) : "", limit);
  if (wish.only_front) verdict.text += fmt::format(" (at {} alone, which was asked)", wish.front);
  return false;
}

Placement::Shape Placement::shape_of(const RequestRecord& wish) {
  return {wish.tenant,       wish.only_front ? wish.front : std::string(),
          wish.avoid,        wish.unreached,
          wish.gpus,         wish.hosts,
          wish.memory_bytes, wish.compute_percent};
}

Placement::Verdict Placement::too_many_wishes(const RequestRecord& wish) {
  return {Shortage::room,
          fmt::format("tenant '{}' has {} other wishes in the queue of this pool that cannot be served now; try later",
                      wish.tenant, wishes_max),
          {},
          {}};
}

// None if some hosts could give it if nobody used them.
const Placement::Obstacle& Placement::obstacle(const RequestRecord& wish) {
  if (obstacles_.size() >= obstacles_max) obstacles_.clear();
  const auto [place, fresh] = obstacles_.try_emplace(shape_of(wish));
  Obstacle& obstacle = place->second;
  Verdict ever, lately;
  if (!fresh || choose(wish, Taken::nothing, ever)) return obstacle;
  if (!choose(wish, Taken::absence, lately)) {
    obstacle.never = ever.text;
    return obstacle;
  }
  std::vector<std::string> away;
  for (std::size_t i = 0; i < lately.parts.size(); ++i)
    if (!lately.parts[i].first->there) away.push_back(lately.names[i]);
  obstacle.away =
      fmt::format("{} {} asked for, which {} could give: {} away now; try later", wish_text(wish),
                  wish.gpus == 1 ? "is" : "are", fmt::join(away, " and "),
                  away.size() == 1 ? "it was in the pool lately, and is" : "they were in the pool lately, and are");
  return obstacle;
}

Placement::Verdict Placement::judge(const RequestRecord& wish, const std::map<std::string, Use>& uses) {
  Verdict verdict;
  const auto tenant = tenants_.find(wish.tenant);
  const Limits limits = tenant == tenants_.end() ? Limits() : tenant->second.limits;
  if (limits.memory_bytes != 0 && wish.memory_bytes == 0) {
    verdict.shortage = Shortage::never;
    verdict.text = fmt::format(
        "tenant '{}' may have {} of memory in this pool; say how much of it each GPU is to have, with -m or FARGPU_MEM",
        wish.tenant, bytes_text(limits.memory_bytes));
    return verdict;
  }
  if (limits.compute_percent != 0 && wish.compute_percent == 0) {
    verdict.shortage = Shortage::never;
    verdict.text = fmt::format(
        "tenant '{}' may have {}% of compute in this pool; say how much of each GPU is asked for, with -c or "
        "FARGPU_COMPUTE",
        wish.tenant, limits.compute_percent);
    return verdict;
  }
  const bool room = choose(wish, Taken::all, verdict);
  if (!room) {
    verdict.shortage = Shortage::room;
    if (const Obstacle& why = obstacle(wish); !why.never.empty()) {
      verdict.shortage = Shortage::never;
      verdict.text = why.never;
    } else if (!why.away.empty()) {
      verdict.text = why.away;
    }
  }
  // Where it does not fit now, as much is asked for as would be given.
  unsigned gpus = wish.gpus;
  std::uint64_t leases = 1;
  if (room) {
    gpus = 0;
    for (const auto& [host, devices] : verdict.parts) gpus += devices;
    leases = verdict.parts.size();
  }
  const std::uint64_t least = std::max(wish.gpus, 1u);
  const Use least_asked{wish.memory_bytes * least, wish.compute_percent * least, 1};
  Use has, with{wish.memory_bytes * gpus, std::uint64_t{wish.compute_percent} * gpus, leases};
  if (const auto use = uses.find(wish.tenant); use != uses.end()) has = use->second;
  add(with, has);
  if (exceeds(limits, least_asked)) {
    verdict.shortage = Shortage::never;
    verdict.text = fmt::format("{} {} more than tenant '{}' may have in this pool, which is {}", wish_text(wish),
                               wish.gpus == 1 ? "is" : "are", wish.tenant, limits_text(limits));
  } else if (exceeds(limits, with) && verdict.shortage != Shortage::never) {
    verdict.shortage = Shortage::quota;
    verdict.text = fmt::format("tenant '{}' has {} in this pool, may have {}, and {} {} asked for; try later",
                               wish.tenant, use_text(limits, has.memory_bytes, has.compute_percent, has.leases),
                               limits_text(limits), wish_text(wish), wish.gpus == 1 ? "is" : "are");
  }
  if (verdict.shortage != Shortage::nothing) {
    verdict.parts.clear();
    verdict.names.clear();
  }
  return verdict;
}

// What is free and suits it at the hosts that it waits for is kept for it.
void Placement::claim(Waiting& waiting, Clock::time_point now) {
  const RequestRecord& wish = waiting.record;
  std::uint64_t sum = 0;
  std::erase_if(waiting.claimed, [&](const std::string& name) {
    const auto host = hosts_.find(name);
    const unsigned gives = host == hosts_.end() ? 0 : can_give(host->second, wish, Taken::of_tenant);
    sum += gives;
    return gives == 0;
  });
  if (sum < std::max(wish.gpus, 1u)) {
    waiting.claimed.clear();
    if (waiting.chosen && now - *waiting.chosen < claim_again) return;
    waiting.chosen = now;
    choose_claims(waiting);
  }
  LeaseRecord lease;
  lease.tenant = wish.tenant;
  lease.memory_bytes = wish.memory_bytes;
  lease.compute_percent = wish.compute_percent;
  unsigned missing = wish.gpus;
  for (const std::string& name : waiting.claimed) {
    Host& host = hosts_[name];
    const unsigned share = wish.gpus == 0 ? 0 : std::min(missing, can_give(host, wish, Taken::of_tenant));
    if (wish.gpus != 0 && share == 0) continue;
    missing -= share;
    take(host.spare, allowed(host, wish.tenant), share, lease);
    change(name);
  }
}

// Hosts that could serve it once others' leases there have ended; none if they could not.
void Placement::choose_claims(Waiting& waiting) {
  const RequestRecord& wish = waiting.record;
  struct Suited {
    unsigned free, gives;
    const std::string* name;
  };
  std::vector<Suited> suited;
  for (const auto& [name, host] : hosts_)
    if (const unsigned gives = suits(name, wish) ? can_give(host, wish, Taken::of_tenant) : 0; gives > 0)
      suited.push_back({can_give(host, wish, Taken::all), gives, &name});
  // Those that have most of it by now.
  std::stable_sort(suited.begin(), suited.end(), [](const Suited& a, const Suited& b) { return a.free > b.free; });
  // One host that could serve it alone, if there is one.
  const unsigned enough = std::max(wish.gpus, 1u);
  const auto serves_alone = [&](const Suited& one) { return one.gives >= enough; };
  auto alone = std::ranges::find_if(
      suited, [&](const Suited& one) { return serves_alone(one) && !comes_last(*one.name, wish); });
  if (alone == suited.end()) alone = std::ranges::find_if(suited, serves_alone);
  if (alone != suited.end()) {
    waiting.claimed.push_back(*alone->name);
    return;
  }
  std::uint64_t found = 0;
  for (const Suited& one : suited) {
    if (found >= enough || waiting.claimed.size() == std::min<std::size_t>(wish.hosts, parts_max)) break;
    found += one.gives;
    waiting.claimed.push_back(*one.name);
  }
  if (found < enough) waiting.claimed.clear();
}

std::vector<Placement::Decision> Placement::decide(std::size_t most, Clock::time_point now) {
  std::vector<Decision> decisions;
  fresh_ = false;
  if (requests_.empty()) return decisions;
  prepare();
  std::map<std::string, Use> uses = uses_;
  std::size_t claims = 0;
  std::uint64_t served = virtual_time_;
  std::optional<std::uint64_t> first_waiting;
  // Within a round there is less and less left: what has found none is not looked for again.
  std::map<Shape, Verdict> failed;
  std::map<std::string, std::size_t> wishes;  // that failed, by tenant
  for (const auto& [place, id] : order_) {
    if (decisions.size() >= most) break;
    Waiting& waiting = requests_.at(id);
    const RequestRecord& wish = waiting.record;
    Shape shape = shape_of(wish);
    const auto known = failed.find(shape);
    Verdict verdict;
    if (known != failed.end()) verdict = known->second;
    else if (wishes[wish.tenant] >= wishes_max) verdict = too_many_wishes(wish);
    else if (verdict = judge(wish, uses); verdict.shortage != Shortage::nothing) ++wishes[wish.tenant];
    if (verdict.shortage != Shortage::nothing) failed.emplace(std::move(shape), verdict);
    Decision decision{id, wish, waiting.created, {}, {}, verdict.text};
    if (verdict.shortage == Shortage::nothing) {
      decision.lease = {wish.tenant, wish.job,     0,          wish.memory_bytes, wish.compute_percent, wish.priority,
                        0,           wish.program, wish.client};
      for (std::size_t i = 0; i < verdict.parts.size(); ++i) {
        auto& [host, gpus] = verdict.parts[i];
        decision.answer.parts.push_back({verdict.names[i], host->record.address, host->record.identity, gpus});
        take(verdict.names[i], *host, gpus, decision.lease);
        LeaseRecord part = decision.lease;
        part.gpus = gpus;
        add(uses[wish.tenant], use_of(part));
      }
      served = std::max(served, waiting.tag);
      if (!wish.waits) last_tag_[wish.tenant] = std::max(last_tag_[wish.tenant], waiting.tag);
      decisions.push_back(std::move(decision));
      continue;
    }
    // A client that has been sent to hosts in vain is told at once.
    const bool hopeless =
        verdict.shortage == Shortage::never && (now - waiting.since >= hopeless_max || !wish.unreached.empty());
    if (!wish.waits || hopeless) {
      decision.answer.may_change = verdict.shortage != Shortage::never;
      decision.answer.text = verdict.text;
      decisions.push_back(std::move(decision));
      continue;
    }
    if (!first_waiting) first_waiting = waiting.tag;
    if (verdict.shortage == Shortage::quota) {
      LeaseRecord wanted;
      wanted.gpus = wish.gpus;
      wanted.memory_bytes = wish.memory_bytes;
      wanted.compute_percent = wish.compute_percent;
      add(uses[wish.tenant], use_of(wanted));
    } else if (verdict.shortage == Shortage::room && claims++ < claims_max) {
      claim(waiting, now);
    }
  }
  // Time does not pass those that still wait: a tenant that comes anew would be behind all of them.
  virtual_time_ = std::max(virtual_time_, std::min(served, first_waiting.value_or(served)));
  return decisions;
}

}  // namespace fargpu::server::pool
