#include "host_facts.h"

#include <algorithm>

#include "protocol/errors.h"
#include "protocol/limits.h"

namespace fargpu::server {
namespace {

constexpr std::size_t uuid_bytes = 16;

// A list by itself says nothing of what is in it: text may have no end, and a struct may have parts that nobody asked
// for.
void copy_attributes(capnp::List<wire::AttributeValue>::Reader from, capnp::List<wire::AttributeValue>::Builder to) {
  for (unsigned i = 0; i < from.size(); ++i) {
    to[i].setAttribute(from[i].getAttribute());
    to[i].setValue(from[i].getValue());
  }
}

}  // namespace

void copy_facts(wire::HostFacts::Reader from, wire::HostFacts::Builder to) {
  const auto devices = from.getDevices();
  const auto peers = from.getPeers();
  if (devices.size() > limits::devices_max || peers.size() > limits::devices_max * limits::devices_max)
    throw ProtocolError("the worker tells of more devices than there can be");
  to.setDriverVersion(from.getDriverVersion());
  to.setDriverRelease(from.getDriverRelease());
  to.setModuleLoadingMode(from.getModuleLoadingMode());
  auto known = to.initDevices(devices.size());
  for (unsigned i = 0; i < devices.size(); ++i) {
    if (devices[i].getUuid().size() != uuid_bytes) throw ProtocolError("the worker tells of a device without a UUID");
    known[i].setName(devices[i].getName());
    known[i].setUuid(devices[i].getUuid());
    known[i].setMemoryBytes(devices[i].getMemoryBytes());
    copy_attributes(devices[i].getAttributes(), known[i].initAttributes(devices[i].getAttributes().size()));
    copy_attributes(devices[i].getExecAffinity(), known[i].initExecAffinity(devices[i].getExecAffinity().size()));
  }
  auto links = to.initPeers(peers.size());
  for (unsigned i = 0; i < peers.size(); ++i) {
    links[i].setFrom(peers[i].getFrom());
    links[i].setTo(peers[i].getTo());
    links[i].setCanAccess(peers[i].getCanAccess());
    copy_attributes(peers[i].getAttributes(), links[i].initAttributes(peers[i].getAttributes().size()));
  }
}

void copy_facts(wire::HostFacts::Reader from, const std::vector<unsigned>& devices, std::uint64_t memory_bytes,
                wire::HostFacts::Builder to) {
  to.setDriverVersion(from.getDriverVersion());
  to.setDriverRelease(from.getDriverRelease());
  to.setModuleLoadingMode(from.getModuleLoadingMode());
  auto chosen = to.initDevices(static_cast<unsigned>(devices.size()));
  for (unsigned i = 0; i < chosen.size(); ++i) {
    chosen.setWithCaveats(i, from.getDevices()[devices[i]]);
    if (memory_bytes != 0) chosen[i].setMemoryBytes(std::min(chosen[i].getMemoryBytes(), memory_bytes));
  }
  const auto place = [&](unsigned device) {
    return static_cast<unsigned>(std::find(devices.begin(), devices.end(), device) - devices.begin());
  };
  std::vector<wire::PeerFacts::Reader> links;
  for (const auto link : from.getPeers())
    if (place(link.getFrom()) < devices.size() && place(link.getTo()) < devices.size()) links.push_back(link);
  auto peers = to.initPeers(static_cast<unsigned>(links.size()));
  for (unsigned i = 0; i < peers.size(); ++i) {
    peers.setWithCaveats(i, links[i]);
    peers[i].setFrom(place(links[i].getFrom()));
    peers[i].setTo(place(links[i].getTo()));
  }
}

bool same_devices(wire::HostFacts::Reader a, wire::HostFacts::Reader b) {
  const auto ours = a.getDevices(), theirs = b.getDevices();
  bool same = ours.size() == theirs.size();
  for (unsigned i = 0; same && i < ours.size(); ++i) same = ours[i].getUuid() == theirs[i].getUuid();
  return same;
}

}  // namespace fargpu::server
