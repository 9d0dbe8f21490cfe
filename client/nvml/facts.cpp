// What does not change while a program runs: what kind of device it is, and how devices lie to each other. "NVML API
// Reference Guide", "Device Queries" and "Topology".

#include <cuda.h>
#include <unistd.h>

#include <fstream>

#include "state.h"

namespace fargpu::client::nvml {
namespace {

Return give_attribute(DeviceHandle handle, CUdevice_attribute attribute, unsigned* out, unsigned divisor = 1) noexcept {
  return with_device(handle, [&](const Device& device, unsigned) {
    const auto found = device.attributes.find(attribute);
    return found == device.attributes.end() ? NVML_ERROR_NOT_SUPPORTED
                                            : give(static_cast<unsigned>(found->second) / divisor, out);
  });
}

// CUDA Programming Guide, "Compute Capabilities": processors for 32-bit floating point in one multiprocessor.
unsigned cores_per_multiprocessor(int capability) {
  if (capability == 60 || (capability >= 70 && capability <= 80)) return 64;
  return 128;
}

// NVML_DEVICE_ARCH_*, by compute capability.
unsigned architecture(int capability) {
  if (capability >= 100) return 10;  // Blackwell
  if (capability >= 90) return 9;    // Hopper
  if (capability == 89) return 8;    // Ada
  if (capability >= 80) return 7;    // Ampere
  if (capability >= 75) return 6;    // Turing
  if (capability >= 70) return 5;    // Volta
  if (capability >= 60) return 4;    // Pascal
  return capability >= 50 ? 3 : 2;   // Maxwell, Kepler
}

template <class Use>
Return with_two(DeviceHandle one, DeviceHandle other, Use&& use) noexcept {
  unsigned first = 0, second = 0;
  const auto number = [](unsigned& out) {
    return [&out](const Device&, unsigned n) {
      out = n;
      return NVML_SUCCESS;
    };
  };
  if (const Return bad = with_device(one, number(first)); bad != NVML_SUCCESS) return bad;
  if (const Return bad = with_device(other, number(second)); bad != NVML_SUCCESS) return bad;
  return with_host([&](const Host& host) { return use(host, first, second); });
}

}  // namespace

NVML_EXPORT Return nvmlDeviceGetArchitecture(DeviceHandle device, unsigned* out) {
  return with_device(device, [&](const Device& d, unsigned) { return give(architecture(d.compute_capability), out); });
}
NVML_EXPORT Return nvmlDeviceGetNumGpuCores(DeviceHandle device, unsigned* out) {
  return with_device(device, [&](const Device& d, unsigned) {
    const auto found = d.attributes.find(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    if (found == d.attributes.end()) return NVML_ERROR_NOT_SUPPORTED;
    return give(static_cast<unsigned>(found->second) * cores_per_multiprocessor(d.compute_capability), out);
  });
}
NVML_EXPORT Return nvmlDeviceGetMemoryBusWidth(DeviceHandle device, unsigned* out) {
  return give_attribute(device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, out);
}
NVML_EXPORT Return nvmlDeviceGetMultiGpuBoard(DeviceHandle device, unsigned* out) {
  return give_attribute(device, CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD, out);
}
NVML_EXPORT Return nvmlDeviceGetBusType(DeviceHandle device, unsigned* out) {
  constexpr unsigned pcie = 2;  // NVML_BUS_TYPE_PCIE
  return with_device(device, [&](const Device& d, unsigned) {
    return d.pci_device_id == 0 ? NVML_ERROR_NOT_SUPPORTED : give(pcie, out);
  });
}
NVML_EXPORT Return nvmlDeviceGetPciInfoExt(DeviceHandle device, PciInfoExt* pci) {
  if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
  if (pci->version != pci_ext_version) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return with_device(device, [&](const Device& d, unsigned) {
    *pci = {pci_ext_version, d.pci_domain, d.pci_bus, d.pci_device, d.pci_device_id, d.pci_subsystem_id, 0, 0, {}};
    std::snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", d.pci_domain, d.pci_bus, d.pci_device);
    return NVML_SUCCESS;
  });
}

// Nothing is shown on a device of another machine, sessions have whole devices, and there are no units of devices.
NVML_EXPORT Return nvmlDeviceGetDisplayMode(DeviceHandle device, unsigned* out) {
  return with_device(device, [&](const Device&, unsigned) { return give(0u, out); });
}
NVML_EXPORT Return nvmlDeviceGetDisplayActive(DeviceHandle device, unsigned* out) {
  return nvmlDeviceGetDisplayMode(device, out);
}
NVML_EXPORT Return nvmlDeviceIsMigDeviceHandle(DeviceHandle device, unsigned* out) {
  return nvmlDeviceGetDisplayMode(device, out);
}
NVML_EXPORT Return nvmlDeviceGetMaxMigDeviceCount(DeviceHandle device, unsigned* out) {
  return nvmlDeviceGetDisplayMode(device, out);
}
NVML_EXPORT Return nvmlUnitGetCount(unsigned* out) {
  return with_host([&](const Host&) { return give(0u, out); });
}
NVML_EXPORT Return nvmlGetExcludedDeviceCount(unsigned* out) { return nvmlUnitGetCount(out); }
NVML_EXPORT Return nvmlGetBlacklistDeviceCount(unsigned* out) { return nvmlUnitGetCount(out); }
NVML_EXPORT Return nvmlDeviceGetSupportedEventTypes(DeviceHandle device, unsigned long long* out) {
  return with_device(device, [&](const Device&, unsigned) { return give(0ull, out); });
}

NVML_EXPORT Return nvmlDeviceGetTopologyCommonAncestor(DeviceHandle one, DeviceHandle other, unsigned* level) {
  return with_two(one, other, [&](const Host& host, unsigned first, unsigned second) {
    if (first == second) return NVML_ERROR_INVALID_ARGUMENT;
    const auto found = host.distances.find({first, second});
    return found == host.distances.end() ? NVML_ERROR_NOT_SUPPORTED : give(found->second.level, level);
  });
}
NVML_EXPORT Return nvmlDeviceOnSameBoard(DeviceHandle one, DeviceHandle other, int* same) {
  return with_two(one, other, [&](const Host& host, unsigned first, unsigned second) {
    const auto found = host.distances.find({first, second});
    if (first != second && found == host.distances.end()) return NVML_ERROR_NOT_SUPPORTED;
    constexpr unsigned on_board = 0;  // NVML_TOPOLOGY_INTERNAL
    return give(first == second || found->second.level == on_board ? 1 : 0, same);
  });
}
// What the host's driver lets devices do with each other's memory, as cuDeviceCanAccessPeer tells it; over which wires,
// as the host's NVML does.
NVML_EXPORT Return nvmlDeviceGetP2PStatus(DeviceHandle one, DeviceHandle other, unsigned index, unsigned* status) {
  enum Index : unsigned { read = 0, write = 1, nvlink = 2, atomics = 3, pcie = 4 };  // nvmlGpuP2PCapsIndex_t
  constexpr unsigned ok = 0, not_supported = 5;                                      // nvmlGpuP2PStatus_t
  return with_two(one, other, [&](const Host& host, unsigned first, unsigned second) {
    if (index > pcie) return NVML_ERROR_INVALID_ARGUMENT;
    if (first == second) return give(ok, status);  // NCCL asks this too
    const auto found = host.peers.find({first, second});
    if (found == host.peers.end() || !found->second.can_access) return give(not_supported, status);
    const auto distance = host.distances.find({first, second});
    if (distance != host.distances.end() && index < distance->second.peer_status.size())
      return give(unsigned{distance->second.peer_status[index]}, status);
    if (index == nvlink || index == pcie) return give(not_supported, status);
    const auto& attributes = found->second.attributes;
    const auto native = attributes.find(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
    const bool can = index != atomics || (native != attributes.end() && native->second != 0);
    return give(can ? ok : not_supported, status);
  });
}

// Processes are told of this machine only.
NVML_EXPORT Return nvmlSystemGetProcessName(unsigned process, char* name, unsigned length) {
  return with_host([&](const Host&) {
    const std::string folder = "/proc/" + std::to_string(process);
    char path[4096] = {};
    if (::readlink((folder + "/exe").c_str(), path, sizeof(path) - 1) > 0) return give_text(path, name, length);
    std::string word;
    std::ifstream file(folder + "/comm");
    if (!std::getline(file, word)) return NVML_ERROR_NOT_FOUND;
    return give_text(word, name, length);
  });
}

}  // namespace fargpu::client::nvml
