#pragma once
// What does not change while the session lives: devices as the program sees them, and the driver's words for errors.

#include <cuda.h>

#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "control.capnp.h"

namespace fargpu::client {

struct Device {
  int worker_ordinal = 0;
  std::string name;
  CUuuid uuid{};
  std::array<char, 8> luid{};
  unsigned luid_node_mask = 0;
  std::uint64_t memory_bytes = 0;
  std::unordered_map<int, int> attributes;
  std::array<unsigned, 3> grid_max{}, block_max{};  ///< of these attributes, for launches
  std::map<int, int> exec_affinity;

  int attribute(CUdevice_attribute which) const {
    const auto found = attributes.find(which);
    return found == attributes.end() ? 0 : found->second;
  }
};

struct Peer {
  bool can_access = false;
  std::map<int, int> attributes;
};

struct Facts {
  int driver_version = 0;
  int module_loading_mode = 0;
  std::vector<Device> devices;                ///< visible ones, in the program's order
  std::map<std::pair<int, int>, Peer> peers;  ///< by worker ordinals
  std::map<int, std::string> error_texts;

  const Device* device(CUdevice ordinal) const {
    if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= devices.size()) return nullptr;
    return &at(ordinal);
  }
  /// As device(), of one that is there.
  const Device& at(CUdevice ordinal) const { return devices[static_cast<std::size_t>(ordinal)]; }
  /// Whether the program has such a device, at this worker.
  bool has(CUdevice ordinal) const {
    const Device* const found = device(ordinal);
    return found && found->worker_ordinal >= 0;
  }
  /// The worker's number of a device; false if the program has no such device.
  bool worker_ordinal(CUdevice ordinal, int& of_worker) const;
  /// Whether the hardware can; ordinals as the program sees them.
  bool can_access(CUdevice from, CUdevice to) const;
  /// The program's number of one of the worker's devices; -1 if it does not see that.
  CUdevice client_ordinal(int of_worker) const;
};

/// Reads the facts and applies the overrides of codegen/spec/device.toml. All devices are visible.
Facts read_facts(wire::HostFacts::Reader from);

/// Reduces the devices to those CUDA_VISIBLE_DEVICES names, in its order: numbers or prefixes of "GPU-<uuid>". As the
/// driver does, the list ends at the first entry that names no device, and a device named twice makes it empty.
void select_devices(Facts& facts, const std::string& visible);

}  // namespace fargpu::client
