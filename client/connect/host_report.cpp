#include "host_report.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <type_traits>

#include "client/base/config.h"
#include "control_connection.h"
#include "over_breaks.h"
#include "pci_domains.h"
#include "pool_contacts.h"
#include "client/base/uuid.h"
#include "protocol/host_name.h"

namespace fargpu::client::report {
namespace {

Link read_link(const Host& host, wire::Link::Reader from) {
  Link link{.version = from.getVersion(),
            .capabilities = from.getCapabilities(),
            .remote_type = from.getRemoteType(),
            .remote_device = {},
            .remote_domain = from.getRemoteDomain(),
            .remote_bus = from.getRemoteBus(),
            .remote_pci_device = from.getRemotePciDevice(),
            .remote_pci_device_id = from.getRemotePciDeviceId(),
            .remote_bus_id = from.getRemoteBusId().cStr(),
            .remote_bus_id_legacy = from.getRemoteBusIdLegacy().cStr()};
  const auto found = std::find_if(host.devices.begin(), host.devices.end(), [&](const Device& device) {
    return std::tuple(device.pci_domain, device.pci_bus, device.pci_device) ==
           std::tuple(link.remote_domain, link.remote_bus, link.remote_pci_device);
  });
  if (found != host.devices.end()) link.remote_device = static_cast<std::size_t>(found - host.devices.begin());
  return link;
}

}  // namespace

Host read_host(wire::Status::Reader status) {
  Host host;
  host.driver_release = status.getDriverRelease().cStr();
  host.driver_version = static_cast<int>(status.getDriverVersion());
  for (const auto from : status.getDevices()) {
    Device& device = host.devices.emplace_back();
    device.name = from.getName().cStr();
    device.uuid = uuid_text(read_uuid(from.getUuid()));
    device.pci_domain = from.getPciDomain();
    device.pci_bus = from.getPciBus();
    device.pci_device = from.getPciDevice();
    device.pci_device_id = from.getPciDeviceId();
    device.pci_subsystem_id = from.getPciSubSystemId();
    device.compute_capability = static_cast<int>(from.getComputeCapability());
    device.memory_bytes = from.getMemoryBytes();
    if (const std::uint64_t wanted = config().lease.memory_bytes; wanted != 0)
      device.memory_bytes = std::min(device.memory_bytes, wanted);
    device.used_bytes = std::min(from.getUsedBytes(), device.memory_bytes);
    for (const auto attribute : from.getAttributes())
      device.attributes[static_cast<int>(attribute.getAttribute())] = attribute.getValue();
    for (const auto reading : from.getReadings()) device.readings[reading.getKind()] = reading.getValue();
  }
  for (const auto from : status.getPeers()) {
    Host::Peer& peer = host.peers[{from.getFrom(), from.getTo()}];
    peer.can_access = from.getCanAccess();
    for (const auto attribute : from.getAttributes())
      peer.attributes[static_cast<int>(attribute.getAttribute())] = attribute.getValue();
  }
  for (const auto from : status.getDistances()) {
    Host::Distance& distance = host.distances[{from.getFrom(), from.getTo()}];
    distance.level = from.getLevel();
    for (const std::uint8_t peer_status : from.getPeerStatus()) distance.peer_status.push_back(peer_status);
  }
  for (const auto from : status.getLinks())
    if (from.getDevice() < host.devices.size())
      host.devices[from.getDevice()].links[from.getNumber()] = read_link(host, from);
  for (const auto from : status.getSessions()) {
    if (host_name() != from.getHostName().cStr()) continue;  // process ids mean nothing elsewhere
    Session& session = host.sessions.emplace_back();
    session.process_id = from.getProcessId();
    session.program = from.getProgram().cStr();
    for (const std::uint64_t bytes : from.getMemoryBytes()) session.memory_bytes.push_back(bytes);
  }
  return host;
}

namespace {

// Leaves these devices, in this order, and what is said of them.
void keep_devices(Host& host, const std::vector<unsigned>& kept) {
  std::map<std::size_t, unsigned> now;
  for (unsigned i = 0; i < kept.size(); ++i) now[kept[i]] = i;
  std::vector<Device> devices;
  for (const unsigned device : kept) devices.push_back(std::move(host.devices[device]));
  host.devices = std::move(devices);
  for (Device& device : host.devices)
    for (auto& [number, link] : device.links)
      if (link.remote_device)
        link.remote_device =
            now.contains(*link.remote_device) ? std::optional<std::size_t>(now[*link.remote_device]) : std::nullopt;
  for (Session& session : host.sessions) {
    std::vector<std::uint64_t> bytes(kept.size());
    for (unsigned i = 0; i < kept.size(); ++i)
      if (kept[i] < session.memory_bytes.size()) bytes[i] = session.memory_bytes[kept[i]];
    session.memory_bytes = std::move(bytes);
  }
  const auto of_pairs = [&](auto& facts) {
    std::remove_reference_t<decltype(facts)> left;
    for (auto& [pair, fact] : facts)
      if (now.contains(pair.first) && now.contains(pair.second))
        left[{now[pair.first], now[pair.second]}] = std::move(fact);
    facts = std::move(left);
  };
  of_pairs(host.peers);
  of_pairs(host.distances);
  host.guessed = true;
}

// The devices of all hosts as the driver API numbers them.
Host together(std::map<std::size_t, Host> hosts) {
  std::vector<std::vector<unsigned>> domains;
  for (const auto& [place, host] : hosts) {
    auto& of_host = domains.emplace_back();
    for (const Device& device : host.devices) of_host.push_back(device.pci_domain);
  }
  separate_domains(domains);
  Host all;
  std::size_t number = 0;
  for (auto& [place, host] : hosts) {
    for (std::size_t i = 0; i < host.devices.size(); ++i) host.devices[i].pci_domain = domains[number][i];
    if (number++ == 0) {
      all = std::move(host);
      continue;
    }
    const auto before = static_cast<unsigned>(all.devices.size());
    all.address += ", " + host.address;
    for (Device& device : host.devices) {
      for (auto& [number_of_link, link] : device.links)
        if (link.remote_device) *link.remote_device += before;
      all.devices.push_back(std::move(device));
    }
    for (Session& session : host.sessions) {
      session.memory_bytes.insert(session.memory_bytes.begin(), before, 0);
      all.sessions.push_back(std::move(session));
    }
    for (const auto& [pair, peer] : host.peers) all.peers[{pair.first + before, pair.second + before}] = peer;
    for (auto& [pair, distance] : host.distances)
      all.distances[{pair.first + before, pair.second + before}] = std::move(distance);
  }
  return all;
}

}  // namespace

namespace {

// Before a process has a lease, its devices are not known: the first ones that its tenant may have count, as many as it
// asks for. The broker tells one that has a lease of that alone, and of no tenants.
void keep_expected(Host& host, wire::Status::Reader status) {
  std::vector<unsigned> expected;
  bool has_lease = true;
  for (const auto tenant : status.getTenants()) {
    if (tenant.getName() != status.getTenant()) continue;
    has_lease = false;
    for (const unsigned device : tenant.getDevices()) expected.push_back(device);
  }
  if (has_lease) return;
  std::erase_if(expected, [&](unsigned device) { return device >= host.devices.size(); });
  if (expected.empty())
    for (unsigned device = 0; device < host.devices.size(); ++device) expected.push_back(device);
  if (const std::size_t gpus = config().lease.gpus; gpus != 0 && gpus < expected.size()) expected.resize(gpus);
  if (expected.size() < host.devices.size()) keep_devices(host, expected);
}

Host ask_once() {
  const LeaseOptions& lease = config().lease;
  const bool several = lease.split.size() > 1 || (lease.hosts > 1 && !lease.job);
  PoolContacts contacts(config().hosts);
  std::map<std::size_t, Host> answered;  // by their places in the pool
  while (const auto contact = contacts.next()) {
    try {
      Host host;
      contact->broker->ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
                           [&](wire::Control::Reader control) {
                             host = read_host(control.getStatus());
                             if (!several && !lease.job) keep_expected(host, control.getStatus());
                           });
      host.address = address_text(contact->host);
      answered.emplace(contact->place, std::move(host));
      if (!several) break;
    } catch (const DialError& error) {
      contacts.failed(contact->place, error);
    }
  }
  if (answered.empty()) throw none_usable(contacts.errors());
  return together(std::move(answered));
}

}  // namespace

Host ask_host() {
  require_pool(config());
  return over_breaks(ask_once);
}

}  // namespace fargpu::client::report
