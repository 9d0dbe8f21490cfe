#include "offer.h"

#include <algorithm>
#include <vector>

#include "client/base/uuid.h"

namespace fargpu::client {

Offer read_offer(wire::Status::Reader status, const LeaseOptions& wish) {
  Offer offer;
  // Those that the tenant may use.
  std::vector<wire::DeviceStatus::Reader> devices;
  for (const auto tenant : status.getTenants())
    if (tenant.getName() == status.getTenant())
      for (const unsigned device : tenant.getDevices())
        if (device < status.getDevices().size()) devices.push_back(status.getDevices()[device]);
  if (devices.empty())
    for (const auto device : status.getDevices()) devices.push_back(device);
  offer.devices = static_cast<std::uint32_t>(devices.size());
  offer.load = status.getSessionsTaken() + status.getWaiting().size();
  // A job that names no number takes all devices of the host.
  const std::uint32_t needed = std::max(wish.gpus == 0 ? offer.devices : wish.gpus, 1u);
  std::uint32_t fit = 0;
  for (const auto& device : devices) offer.large_enough += device.getMemoryBytes() >= wish.memory_bytes;
  for (const auto& device : devices) fit += device.getFreeBytes() >= std::max<std::uint64_t>(wish.memory_bytes, 1);
  bool within_quota = true;
  for (const auto tenant : status.getTenants())
    if (tenant.getName() == status.getTenant())
      within_quota = tenant.getSessionsLimit() == 0 || tenant.getSessions() < tenant.getSessionsLimit();
  const bool serves = status.getState() == wire::HostState::SERVING && !status.getDraining() &&
                      status.getFailure().getReason() == wire::Failure::Reason::NONE &&
                      status.getSessionsTaken() < status.getSessionsMax() && within_quota;
  offer.room = serves && fit >= needed;
  offer.free = serves ? fit : 0;
  if (status.getDevices().size() > 0) offer.id = uuid_text(read_uuid(status.getDevices()[0].getUuid()));
  return offer;
}

Offer ask_for_offer(ControlConnection& broker) {
  Offer offer;
  broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
             [&](wire::Control::Reader control) { offer = read_offer(control.getStatus(), config().lease); });
  return offer;
}

bool better(const Offer& offer, const Offer& other) {
  if (offer.room != other.room) return offer.room;
  const auto share = [](const Offer& one, const Offer& two) {
    return std::uint64_t{one.load} * std::max(two.devices, 1u);
  };
  return share(offer, other) < share(other, offer);
}

}  // namespace fargpu::client
