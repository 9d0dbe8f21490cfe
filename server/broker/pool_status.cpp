#include "pool_status.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "protocol/host_name.h"
#include "protocol/text.h"

namespace fargpu::server {
namespace {

// More than people read, and a message holds.
constexpr std::size_t hosts_told_max = 2000, waiting_told_max = 1000;

wire::HostState state_of(pool::RoomRecord::State state) {
  switch (state) {
    case pool::RoomRecord::State::draining: return wire::HostState::DRAINING;
    case pool::RoomRecord::State::stopping: return wire::HostState::STOPPING;
    default: return wire::HostState::SERVING;
  }
}

struct Sum {
  std::uint64_t devices = 0, free_devices = 0, memory_bytes = 0, free_bytes = 0;
};

Sum sum_of(const pool::HostRecord& record) {
  Sum sum;
  for (const auto& device : record.devices) sum.memory_bytes += device.bytes;
  sum.devices = record.devices.size();
  return sum;
}

Sum sum_of(const pool::PoolView::Host& host) {
  Sum sum = sum_of(host.record);
  for (const auto& device : host.room.devices) {
    sum.free_devices += device.idle;
    sum.free_bytes += device.bytes;
  }
  return sum;
}

void write_host(const std::string& name, const pool::HostRecord& record, wire::PoolHost::Builder to) {
  to.setName(name);
  to.setAddress(record.address);
  if (!record.devices.empty()) to.setModel(record.devices.front().model);
  const Sum sum = sum_of(record);
  to.setDevices(static_cast<std::uint32_t>(sum.devices));
  to.setMemoryBytes(sum.memory_bytes);
  to.setSessionsMax(record.sessions_max);
  to.setVersion(record.version);
  to.setIdentity(record.identity);
}

void write_hosts(const pool::PoolView& view, wire::PoolStatus::Builder status) {
  const std::size_t told = std::min(view.hosts.size(), hosts_told_max);
  status.setMore(static_cast<std::uint32_t>(view.hosts.size() - told));
  auto list = status.initHosts(static_cast<unsigned>(told));
  auto place = view.hosts.begin();
  for (unsigned i = 0; i < list.size(); ++i, ++place) {
    const auto& [name, host] = *place;
    const Sum sum = sum_of(host);
    auto to = list[i];
    write_host(name, host.record, to);
    to.setState(state_of(host.room.state));
    to.setFreeDevices(static_cast<std::uint32_t>(sum.free_devices));
    to.setFreeBytes(sum.free_bytes);
    to.setLeases(host.leases);
  }
}

void write_away(const pool::PoolView& view, wire::PoolStatus::Builder status) {
  auto list = status.initAway(static_cast<unsigned>(std::min(view.away.size(), hosts_told_max)));
  auto place = view.away.begin();
  for (unsigned i = 0; i < list.size(); ++i, ++place) write_host(place->first, place->second, list[i]);
}

void write_waiting(const pool::PoolView& view, const Viewer& viewer, wire::PoolStatus::Builder status) {
  std::vector<const pool::RequestRecord*> seen;
  for (const auto& request : view.waiting)
    if ((viewer.administrator || request.tenant == viewer.tenant) && seen.size() < waiting_told_max)
      seen.push_back(&request);
  auto list = status.initWaiting(static_cast<unsigned>(seen.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const pool::RequestRecord& request = *seen[i];
    const std::size_t colon = request.client.rfind(':');
    std::uint32_t process = 0;
    if (colon != std::string::npos)
      std::from_chars(request.client.data() + colon + 1, request.client.data() + request.client.size(), process);
    auto to = list[i];
    to.setTenant(request.tenant);
    to.setProgram(request.program);
    to.setHostName(request.client.substr(0, colon));
    to.setProcessId(process);
    to.setSinceSeconds(request.since);
    to.setGpus(request.gpus);
    to.setMemoryBytes(request.memory_bytes);
    to.setComputePercent(request.compute_percent);
    to.setReason("asked at " + request.front +
                 (request.hosts > 1 ? ", for GPUs of " + so_many(request.hosts, "host") : std::string()));
  }
}

void write_tenants(const pool::PoolView& view, const Viewer& viewer, wire::PoolStatus::Builder status) {
  std::set<std::string> names;
  for (const auto& [name, limits] : view.tenants) names.insert(name);
  for (const auto& [name, use] : view.uses) names.insert(name);
  if (!viewer.administrator) std::erase_if(names, [&](const std::string& name) { return name != viewer.tenant; });
  auto list = status.initTenants(static_cast<unsigned>(names.size()));
  unsigned i = 0;
  for (const std::string& name : names) {
    auto to = list[i++];
    to.setName(name);
    const auto limited = view.tenants.find(name);
    const pool::TenantRecord limits = limited == view.tenants.end() ? pool::TenantRecord() : limited->second;
    const auto used = view.uses.find(name);
    const pool::Limits use = used == view.uses.end() ? pool::Limits() : used->second;
    to.setMemoryLimitBytes(limits.limits.memory_bytes);
    to.setMemoryBytes(use.memory_bytes);
    to.setComputeLimitPercent(limits.limits.compute_percent);
    to.setComputePercent(use.compute_percent);
    to.setSessionsLimit(limits.limits.leases);
    to.setLeases(use.leases);
    to.setWeight(limits.weight);
    to.setWaiting(static_cast<std::uint32_t>(
        std::count_if(view.waiting.begin(), view.waiting.end(),
                      [&](const pool::RequestRecord& request) { return request.tenant == name; })));
  }
}

}  // namespace

void write_pool(const PoolHost& host, const pool::PoolView* view, const Viewer& viewer,
                wire::PoolStatus::Builder status) {
  status.setName(host.name());
  status.setMember(host.member().options().host);
  if (!host.member().in_touch()) {
    status.setTrouble(host.member().trouble());
    status.setNameTaken(host.member().name_is_taken());
    status.setAgeSeconds(view ? static_cast<std::uint32_t>(host.view_age().count()) : 0);
  }
  if (!view) return;
  status.setPlacer(view->placer);
  write_hosts(*view, status);
  write_away(*view, status);
  write_waiting(*view, viewer, status);
  write_tenants(*view, viewer, status);
}

void write_pool(PoolHost& host, MetricsText& text) {
  const std::string name = host_name();
  const MetricsText::Labels labels{{"Hostname", name}, {"pool", host.name()}};
  text.add("fargpu_pool_registry_up", "gauge", "1 while the host is a member of its pool and the registry answers.",
           labels, host.member().in_touch() ? 1 : 0);
  text.add("fargpu_pool_placer", "gauge", "1 while this host places the pool's leases.", labels,
           host.member().is_placer() ? 1 : 0);
  if (const pool::PlacerCounts* const counts = host.member().counts())
    for (const auto& [result, count] : {std::pair("granted", counts->granted), std::pair("refused", counts->refused)})
      text.add("fargpu_pool_placements_total", "counter",
               "Requests for leases of the pool that this host has answered since it was elected.",
               {{"Hostname", name}, {"pool", host.name()}, {"result", result}}, static_cast<double>(count));
  const auto view = host.last_view();
  if (!view) return;
  Sum all;
  std::uint64_t leases = 0;
  for (const auto& [of, one] : view->hosts) {
    const Sum sum = sum_of(one);
    all.devices += sum.devices;
    all.free_devices += sum.free_devices;
    all.memory_bytes += sum.memory_bytes;
    all.free_bytes += sum.free_bytes;
    leases += one.leases;
  }
  text.add("fargpu_pool_hosts", "gauge", "Hosts of the pool.", labels, static_cast<double>(view->hosts.size()));
  text.add("fargpu_pool_hosts_away", "gauge", "Hosts that were members of the pool lately, and are away.", labels,
           static_cast<double>(view->away.size()));
  text.add("fargpu_pool_devices", "gauge", "Devices of the pool's hosts.", labels, static_cast<double>(all.devices));
  text.add("fargpu_pool_devices_free", "gauge", "Of these, those on which no lease has anything.", labels,
           static_cast<double>(all.free_devices));
  text.add("fargpu_pool_memory_bytes", "gauge", "Memory of the pool's devices.", labels,
           static_cast<double>(all.memory_bytes));
  text.add("fargpu_pool_memory_free_bytes", "gauge", "Of that, what is not kept for leases and not used.", labels,
           static_cast<double>(all.free_bytes));
  text.add("fargpu_pool_leases", "gauge", "Leases in the pool.", labels, static_cast<double>(leases));
  text.add("fargpu_pool_leases_waiting", "gauge", "Requests for leases that wait in the pool.", labels,
           static_cast<double>(view->waiting.size()));
}

}  // namespace fargpu::server
