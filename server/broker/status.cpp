#include "status.h"

#include <cuda.h>

#include <algorithm>
#include <numeric>

#include "pci.h"
#include "process_memory.h"
#include "protocol/host_name.h"

namespace fargpu::server {
namespace {

std::uint64_t unix_time(std::chrono::system_clock::time_point time) {
  return static_cast<std::uint64_t>(std::chrono::system_clock::to_time_t(time));
}

}  // namespace

void HostStatus::write(wire::Status::Builder status, const Viewer& viewer, const ServiceState& state) const {
  const Lease* const seen = viewer.lease;
  status.setHostName(host_name());
  status.setVersion(FARGPU_VERSION);
  status.setDriver(settings_.driver);
  const auto now = std::chrono::system_clock::now();
  status.setDraining(!state.serves(now));
  status.setState(state.at(now) == ServiceState::State::serving    ? wire::HostState::SERVING
                  : state.at(now) == ServiceState::State::draining ? wire::HostState::DRAINING
                                                                   : wire::HostState::STOPPING);
  if (const auto until = state.until(now)) status.setStateUntil(unix_time(*until));
  status.setStartedSeconds(unix_time(started_));
  const auto facts = workers_.facts();
  if (!workers_.failure().empty()) {
    auto failure = status.initFailure();
    failure.setReason(wire::Failure::Reason::HOST_ERROR);
    failure.setText(workers_.failure());
  }
  unsigned warm = 0;
  std::vector<const Worker*> sessions;
  for (const Worker& worker : workers_.all()) {
    warm += worker.state == Worker::State::ready;
    if (worker.state == Worker::State::session && viewer.sees(worker.lease->lease())) sessions.push_back(&worker);
  }
  status.setWarmWorkers(warm);
  status.setSessionsMax(static_cast<std::uint32_t>(settings_.sessions_max));
  status.setSessionsTaken(static_cast<std::uint32_t>(workers_.taken()));
  status.setTenant(viewer.tenant);
  auto identity = status.initIdentity();
  identity.setKind(viewer.known_by.kind);
  identity.setName(viewer.known_by.name);
  identity.setExpiresSeconds(
      viewer.known_by.expires ? static_cast<std::uint64_t>(viewer.known_by.expires->time_since_epoch().count()) : 0);
  identity.setAdministrator(viewer.administrator);
  const scheduler::Rules& rules = workers_.scheduling().rules();
  status.setPolicy(rules.policy);
  status.setQuantumMs(static_cast<std::uint32_t>(rules.quantum / std::chrono::milliseconds(1)));
  status.setGraceMs(static_cast<std::uint32_t>(rules.grace / std::chrono::milliseconds(1)));
  std::vector<unsigned> places;  // of the devices that are told of
  if (facts) {
    places.resize(seen ? seen->devices.size() : facts->getDevices().size());
    if (seen) places = seen->devices;
    else std::iota(places.begin(), places.end(), 0u);
    status.setDriverVersion(facts->getDriverVersion());
    status.setDriverRelease(facts->getDriverRelease());
    write_devices(status, places, seen);
  }
  write_sessions(status, sessions, places);
  write_leases(status, viewer, places);
  if (viewer.lease) return;  // a program under a lease is told of that alone
  write_tenants(status, viewer);
  write_waiting(status, viewer);
}

void HostStatus::write_tenants(wire::Status::Builder status, const Viewer& viewer) const {
  std::vector<const Tenant*> tenants;
  for (const auto& [name, tenant] : leases_.tenants().all())
    if (viewer.administrator || name == viewer.tenant) tenants.push_back(&tenant);
  auto list = status.initTenants(static_cast<unsigned>(tenants.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const Tenant& tenant = *tenants[i];
    const TenantUse use = leases_.use_of(tenant.name);
    auto to = list[i];
    to.setName(tenant.name);
    to.setMemoryLimitBytes(tenant.memory_bytes);
    to.setMemoryBytes(use.memory_bytes);
    to.setComputeLimitPercent(tenant.compute_percent);
    to.setComputePercent(static_cast<std::uint32_t>((use.compute + 99) / 100));
    to.setSessionsLimit(tenant.sessions_max);
    to.setSessions(use.sessions);
    to.setLeases(static_cast<std::uint32_t>(use.leases));
    to.setWaiting(
        static_cast<std::uint32_t>(std::count_if(leases_.waiting().begin(), leases_.waiting().end(),
                                                 [&](const Waiter* waiter) { return waiter->tenant == tenant.name; })));
    to.setPriority(tenant.priority);
    to.setWeight(tenant.weight);
    auto devices = to.initDevices(static_cast<unsigned>(tenant.devices.size()));
    for (unsigned d = 0; d < devices.size(); ++d) devices.set(d, tenant.devices[d]);
    to.setHostMemoryLimitBytes(tenant.host_bytes);
    to.setHostMemoryBytes(use.host_bytes);
  }
}

void HostStatus::write_waiting(wire::Status::Builder status, const Viewer& viewer) const {
  std::vector<const Waiter*> waiting;
  for (const Waiter* const waiter : leases_.waiting())
    if (viewer.administrator || waiter->tenant == viewer.tenant) waiting.push_back(waiter);
  auto list = status.initWaiting(static_cast<unsigned>(waiting.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const Waiter& waiter = *waiting[i];
    auto to = list[i];
    to.setTenant(waiter.tenant);
    to.setProgram(waiter.program);
    to.setHostName(waiter.host_name);
    to.setProcessId(waiter.process_id);
    to.setSinceSeconds(unix_time(waiter.since));
    to.setGpus(waiter.wish.gpus);
    to.setMemoryBytes(waiter.wish.memory_bytes);
    to.setComputePercent(waiter.wish.compute_percent);
    to.setReason(waiter.reason);
  }
}

void HostStatus::write_sessions(wire::Status::Builder status, const std::vector<const Worker*>& sessions,
                                const std::vector<unsigned>& places) const {
  auto list = status.initSessions(static_cast<unsigned>(sessions.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const Worker& worker = *sessions[i];
    auto to = list[i];
    to.setId(worker.session);
    to.setProgram(worker.client.program);
    to.setHostName(worker.client.host_name);
    to.setProcessId(worker.client.process_id);
    to.setWorkerId(static_cast<std::uint32_t>(worker.process));
    to.setStartedSeconds(unix_time(worker.started));
    auto memory = to.initMemoryBytes(static_cast<unsigned>(places.size()));
    for (unsigned d = 0; d < places.size(); ++d) memory.set(d, worker.used_bytes(places[d]));
    to.setCalls(worker.calls);
    auto busy = to.initBusyNs(static_cast<unsigned>(worker.busy_ns.size()));
    for (unsigned d = 0; d < busy.size(); ++d) busy.set(d, worker.busy_ns[d]);
    to.setWaitedNs(worker.waited_ns);
    to.setKnownBytes(worker.known_bytes);
    to.setLease(worker.lease->lease().id);
    to.setTenant(worker.client.tenant);
    to.setSharedMemory(worker.client.shares_memory);
    to.setRdma(worker.by_rdma);
    to.setResumingSeconds(worker.resuming_since);
    write_residency(worker, to);
    to.setEnding(worker.told_to_stop);
    to.setHostBytes(private_bytes(worker.process));
  }
}

void HostStatus::write_residency(const Worker& worker, wire::SessionStatus::Builder to) const {
  const auto view = workers_.evictions().view(worker.session);
  to.setResidency(view.state);
  to.setResidencySeconds(view.since);
  to.setAwayBytes(view.away);
  to.setAwayHostBytes(view.host_bytes);
  to.setAwayDiskBytes(view.disk_bytes);
  to.setStaysBecause(view.refusal);
}

void HostStatus::write_leases(wire::Status::Builder status, const Viewer& viewer,
                              const std::vector<unsigned>& places) const {
  std::vector<std::shared_ptr<Lease>> leases = leases_.all();
  std::erase_if(leases, [&](const auto& lease) { return !viewer.sees(*lease); });
  auto lease_list = status.initLeases(static_cast<unsigned>(leases.size()));
  for (unsigned i = 0; i < lease_list.size(); ++i) {
    auto to = lease_list[i];
    to.setId(leases[i]->id);
    to.setTenant(leases[i]->tenant);
    auto devices = to.initDevices(static_cast<unsigned>(leases[i]->devices.size()));
    for (unsigned d = 0; d < devices.size(); ++d) {
      const auto place = std::find(places.begin(), places.end(), leases[i]->devices[d]);
      devices.set(d, static_cast<std::uint32_t>(place - places.begin()));
    }
    to.setMemoryBytes(leases[i]->memory_bytes);
    to.setComputePercent(leases[i]->compute_percent);
    to.setPriority(leases[i]->priority);
    to.setSessions(static_cast<std::uint32_t>(leases[i]->sessions));
    write_state(*leases[i], to);
    const std::uint64_t bandwidth = leases[i]->account->bandwidth();
    to.setBandwidthBytes(bandwidth == TenantAccount::no_limit ? 0 : bandwidth);
    to.setMovedBytes(leases[i]->account->moved(leases[i]->id));
    if (const auto view = workers_.scheduling().view_of_lease(leases[i]->id)) {
      to.setSharePercent(view->share.percent);
      to.setWeight(view->share.weight);
      to.setHasTurn(view->turn.granted);
      to.setTurns(view->turns);
      to.setOverruns(view->overruns);
      to.setHeldBack(view->held_back);
    }
  }
}

void HostStatus::write_state(const Lease& lease, wire::LeaseStatus::Builder to) const {
  bool ending = lease.sessions != 0;
  for (const Worker& worker : workers_.all())
    if (worker.lease && &worker.lease->lease() == &lease)
      ending &= worker.told_to_stop || worker.state == Worker::State::ending;
  to.setState(ending                ? wire::LeaseState::ENDING
              : lease.sessions != 0 ? wire::LeaseState::RUNNING
                                    : wire::LeaseState::IDLE);
  if (lease.sessions != 0 || !lease.job) return;
  for (const Waiter* const waiter : leases_.waiting()) {
    if (waiter->job != lease.job || waiter->tenant != lease.tenant) continue;
    to.setState(wire::LeaseState::WAITING);
    to.setWaitingSince(unix_time(waiter->since));
    return;
  }
}

void HostStatus::write_devices(wire::Status::Builder status, const std::vector<unsigned>& places,
                               const Lease* seen) const {
  const auto facts = workers_.facts();
  const auto known = facts->getDevices();
  auto devices = status.initDevices(static_cast<unsigned>(places.size()));
  for (unsigned i = 0; i < devices.size(); ++i) {
    const auto from = known[places[i]];
    auto to = devices[i];
    to.setName(from.getName());
    to.setUuid(from.getUuid());
    const bool limited = seen && seen->memory_bytes != 0;
    to.setMemoryBytes(limited ? seen->memory_bytes : from.getMemoryBytes());
    std::uint64_t used = 0;
    for (const Worker& worker : workers_.all())
      if (worker.state == Worker::State::session && (!limited || &worker.lease->lease() == seen))
        used += limited ? worker.used_bytes(places[i]) : worker.there_bytes(places[i]);
    to.setUsedBytes(used);
    to.setFreeBytes(leases_.free_bytes(places[i]));
    unsigned major = 0, minor = 0;
    for (const auto attribute : from.getAttributes()) {
      const auto value = static_cast<unsigned>(attribute.getValue());
      switch (attribute.getAttribute()) {
        case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: to.setPciDomain(value); break;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: to.setPciBus(value); break;
        case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: to.setPciDevice(value); break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: major = value; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: minor = value; break;
        default: break;
      }
    }
    to.setComputeCapability(10 * major + minor);
    const PciIds ids = pci_ids(to.getPciDomain(), to.getPciBus(), to.getPciDevice());
    to.setPciDeviceId(ids.device);
    to.setPciSubSystemId(ids.subsystem);
    to.setAttributes(from.getAttributes());
    const auto readings = devices_.readings(places[i]);
    auto list = to.initReadings(static_cast<unsigned>(readings.size()));
    for (unsigned r = 0; r < list.size(); ++r) {
      list[r].setKind(readings[r].kind);
      list[r].setValue(readings[r].value);
    }
  }
  // Between devices: by their numbers among those that are told of.
  std::map<unsigned, unsigned> numbers;
  for (unsigned i = 0; i < places.size(); ++i) numbers[places[i]] = i;
  const auto told = [&](unsigned from, unsigned to) { return numbers.contains(from) && numbers.contains(to); };
  std::vector<wire::PeerFacts::Reader> peers;
  for (const auto peer : facts->getPeers())
    if (told(peer.getFrom(), peer.getTo())) peers.push_back(peer);
  auto peer_list = status.initPeers(static_cast<unsigned>(peers.size()));
  for (unsigned p = 0; p < peer_list.size(); ++p) {
    peer_list.setWithCaveats(p, peers[p]);
    peer_list[p].setFrom(numbers.at(peers[p].getFrom()));
    peer_list[p].setTo(numbers.at(peers[p].getTo()));
  }
  auto distances = devices_.distances();
  std::erase_if(distances, [&](const auto& one) { return !told(one.first.first, one.first.second); });
  auto list = status.initDistances(static_cast<unsigned>(distances.size()));
  unsigned d = 0;
  for (const auto& [pair, distance] : distances) {
    auto to = list[d++];
    to.setFrom(numbers.at(pair.first));
    to.setTo(numbers.at(pair.second));
    to.setLevel(distance.level);
    to.setPeerStatus({distance.peer_status.data(), distance.peer_status.size()});
  }
  write_links(status, numbers);
}

void HostStatus::write_links(wire::Status::Builder status, const std::map<unsigned, unsigned>& numbers) const {
  std::vector<std::pair<unsigned, HostNvml::Link>> links;
  for (const auto& [place, number] : numbers)
    for (HostNvml::Link& link : devices_.links(place)) links.emplace_back(number, std::move(link));
  auto list = status.initLinks(static_cast<unsigned>(links.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const auto& [device, link] = links[i];
    auto to = list[i];
    to.setDevice(device);
    to.setNumber(link.number);
    to.setVersion(link.version);
    to.setCapabilities(link.capabilities);
    to.setRemoteType(link.remote_type);
    to.setRemoteDomain(link.remote_domain);
    to.setRemoteBus(link.remote_bus);
    to.setRemotePciDevice(link.remote_pci_device);
    to.setRemotePciDeviceId(link.remote_pci_device_id);
    to.setRemoteBusId(link.remote_bus_id);
    to.setRemoteBusIdLegacy(link.remote_bus_id_legacy);
  }
}

}  // namespace fargpu::server
