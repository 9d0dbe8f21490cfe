#include "simulated_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace fargpu::test {

using namespace server::pool;

namespace {

constexpr std::uint32_t sessions_max = 1000;

}  // namespace

SimulatedHost::SimulatedHost(asio::io_context& io, Registry& registry, Options options)
    : options_(std::move(options)),
      leases_(options_.leases),
      member_(io, registry,
              {"p", options_.name, options_.identity.empty() ? options_.name : options_.identity, options_.places},
              {.describe = [this] { return describe(); },
               .room = [this] { return room(); },
               .admit = [this](const std::string& id, const LeaseRecord& lease) { return admit(id, lease); },
               .withdraw =
                   [this](const std::string& id) {
                     if (!come_) leases_.erase(id);
                   },
               .kept = [this] { return leases_; },
               .log = [this](bool, const std::string& event, const auto&) { ++events_[event]; }}) {
  member_.start();
}

unsigned SimulatedHost::devices_taken() const {
  return std::accumulate(leases_.begin(), leases_.end(), 0u,
                         [](unsigned sum, const auto& lease) { return sum + lease.second.gpus; });
}

unsigned SimulatedHost::told(const std::string& event) const {
  const auto place = events_.find(event);
  return place == events_.end() ? 0 : place->second;
}

void SimulatedHost::end(const std::string& id) {
  leases_.erase(id);
  member_.ended(id);
}

void SimulatedHost::give(const std::string& id, const LeaseRecord& lease) {
  leases_[id] = lease;
  member_.entered(id, lease);
}

HostRecord SimulatedHost::describe() const {
  HostRecord record;
  record.identity = member_.options().identity;
  record.address = options_.name + ":1";
  record.sessions_max = sessions_max;
  for (unsigned device = 0; device < options_.devices; ++device)
    record.devices.push_back({fmt::format("GPU-{}-{}", options_.name, device), "model", options_.device_bytes});
  record.names_tenants = options_.tenants > 0;
  for (unsigned i = 0; i < options_.tenants; ++i) record.tenants[fmt::format("tenant-{}", i)].limits.leases = 1;
  return record;
}

// As a host gives them: of the devices that have room, those with most.
bool SimulatedHost::take(std::vector<Device>& left, const LeaseRecord& lease) {
  std::vector<Device*> fit;
  for (Device& device : left)
    if (device.bytes >= lease.memory_bytes && device.percent >= lease.compute_percent) fit.push_back(&device);
  if (fit.size() < lease.gpus) return false;
  std::stable_sort(fit.begin(), fit.end(), [](const Device* a, const Device* b) { return a->bytes > b->bytes; });
  for (unsigned i = 0; i < lease.gpus; ++i) {
    fit[i]->bytes -= lease.memory_bytes;
    fit[i]->percent -= lease.compute_percent;
  }
  return true;
}

std::vector<SimulatedHost::Device> SimulatedHost::left() const {
  std::vector<Device> left(options_.devices, {options_.device_bytes, 100});
  for (const auto& [id, lease] : leases_) take(left, lease);
  return left;
}

RoomRecord SimulatedHost::room() const {
  RoomRecord record;
  if (drains_) record.state = RoomRecord::State::draining;
  record.load = static_cast<std::uint32_t>(leases_.size());
  record.sessions = sessions_max - record.load;
  for (const Device& device : left()) record.devices.push_back({device.bytes, device.percent, device.percent == 100});
  return record;
}

bool SimulatedHost::admit(const std::string& id, const LeaseRecord& lease) {
  auto room = left();
  if (refuses_ || !take(room, lease)) {
    ++refusals_;
    return false;
  }
  leases_[id] = lease;
  return true;
}

}  // namespace fargpu::test
