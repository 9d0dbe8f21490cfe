#include "facts.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>

#include "cuda_facts.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "client/base/uuid.h"

namespace fargpu::client {

bool Facts::worker_ordinal(CUdevice ordinal, int& of_worker) const {
  if (!has(ordinal)) return false;
  of_worker = at(ordinal).worker_ordinal;
  return true;
}

bool Facts::can_access(CUdevice from, CUdevice to) const {
  const auto peer = peers.find({device(from)->worker_ordinal, device(to)->worker_ordinal});
  return peer != peers.end() && peer->second.can_access;
}

CUdevice Facts::client_ordinal(int of_worker) const {
  for (std::size_t i = 0; i < devices.size(); ++i)
    if (devices[i].worker_ordinal == of_worker) return static_cast<CUdevice>(i);
  return -1;
}

Facts read_facts(wire::HostFacts::Reader from) {
  Facts facts;
  facts.driver_version = static_cast<int>(from.getDriverVersion());
  facts.module_loading_mode = static_cast<int>(from.getModuleLoadingMode());
  if (from.getDevices().size() > limits::devices_max) throw ProtocolError("a host with too many devices");
  for (const auto item : from.getDevices()) {
    Device device;
    device.worker_ordinal = static_cast<int>(facts.devices.size());
    device.name = item.getName().cStr();
    device.uuid = read_uuid(item.getUuid());
    if (item.getLuid().size() == device.luid.size())
      std::memcpy(device.luid.data(), item.getLuid().begin(), device.luid.size());
    device.luid_node_mask = item.getLuidNodeMask();
    device.memory_bytes = item.getMemoryBytes();
    for (const auto a : item.getAttributes()) device.attributes[static_cast<int>(a.getAttribute())] = a.getValue();
    for (const DeviceAttribute& a : device_attributes())
      if (a.remote_value) device.attributes[a.attribute] = *a.remote_value;
    constexpr CUdevice_attribute grid[] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                           CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};
    constexpr CUdevice_attribute block[] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
    for (std::size_t d = 0; d < 3; ++d) {
      device.grid_max[d] = static_cast<unsigned>(device.attribute(grid[d]));
      device.block_max[d] = static_cast<unsigned>(device.attribute(block[d]));
    }
    for (const auto a : item.getExecAffinity()) device.exec_affinity[static_cast<int>(a.getAttribute())] = a.getValue();
    facts.devices.push_back(std::move(device));
  }
  for (const auto item : from.getPeers()) {
    Peer& peer = facts.peers[{static_cast<int>(item.getFrom()), static_cast<int>(item.getTo())}];
    peer.can_access = item.getCanAccess();
    for (const auto a : item.getAttributes()) peer.attributes[static_cast<int>(a.getAttribute())] = a.getValue();
  }
  for (const auto item : from.getErrorTexts())
    facts.error_texts[static_cast<int>(item.getResult())] = item.getText().cStr();
  return facts;
}

// Numbers as strtol(3) reads them, like the driver: blanks may come before one, and anything behind it.
void select_devices(Facts& facts, const std::string& visible) {
  std::vector<Device> chosen;
  std::stringstream items(visible);
  for (std::string item; std::getline(items, item, ',');) {
    item.erase(0, item.find_first_not_of(" \t"));
    item.erase(item.find_last_not_of(" \t") + 1);
    const Device* match = nullptr;
    char* end = nullptr;
    const long number = std::strtol(item.c_str(), &end, 10);
    if (end != item.c_str()) {
      if (number >= 0 && number <= std::numeric_limits<int>::max()) match = facts.device(static_cast<int>(number));
    } else if (item.starts_with("GPU-")) {
      std::size_t matches = 0;
      for (const Device& device : facts.devices) {
        if (!uuid_text(device.uuid).starts_with(item)) continue;
        match = &device;
        ++matches;
      }
      if (matches != 1) match = nullptr;
    }
    if (!match) break;
    for (const Device& already : chosen) {
      if (already.worker_ordinal == match->worker_ordinal) {
        facts.devices.clear();
        return;
      }
    }
    chosen.push_back(*match);
  }
  facts.devices = std::move(chosen);
}

}  // namespace fargpu::client
