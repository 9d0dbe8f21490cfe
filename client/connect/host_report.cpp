#include "host_report.h"

#include <cstring>

#include "client/base/config.h"
#include "control_connection.h"
#include "pool_contacts.h"
#include "client/base/uuid.h"

namespace fargpu::client::report {
namespace {

Host read(wire::Status::Reader status) {
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
  for (const auto from : status.getDistances()) host.distances[{from.getFrom(), from.getTo()}] = from.getLevel();
  for (const auto from : status.getSessions()) {
    if (host_name() != from.getHostName().cStr()) continue;  // process ids mean nothing elsewhere
    Session& session = host.sessions.emplace_back();
    session.process_id = from.getProcessId();
    session.program = from.getProgram().cStr();
    for (const std::uint64_t bytes : from.getMemoryBytes()) session.memory_bytes.push_back(bytes);
  }
  return host;
}

}  // namespace

Host ask_host() {
  require_pool(config());
  PoolContacts contacts(config().hosts);
  while (const auto contact = contacts.next()) {
    try {
      Host host;
      contact->broker->ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
                           [&](wire::Control::Reader control) { host = read(control.getStatus()); });
      host.address = address_text(contact->host);
      return host;
    } catch (const DialError& error) {
      contacts.failed(contact->place, error);
    }
  }
  throw none_usable(contacts.errors());
}

}  // namespace fargpu::client::report
