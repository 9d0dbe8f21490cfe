// NVLinks of devices, as the host's NVML tells them. "NVML API Reference Guide", "NvLink Methods". NCCL, and programs
// that lay out memory over several GPUs, choose by them how many ways they use at a time.

#include <algorithm>

#include "link_fields.h"
#include "state.h"

namespace fargpu::client::nvml {
namespace {

constexpr unsigned links_max = 18;  // NVML_NVLINK_MAX_LINKS

/// Calls `use` with the link, or null if there is one of that number which is down.
template <class Use>
Return with_link(DeviceHandle handle, unsigned number, Use&& use) noexcept {
  return with_host([&](const Host& host) {
    return device_of(host, handle, [&](const Device& device, unsigned) {
      if (device.links.empty()) return NVML_ERROR_NOT_SUPPORTED;
      if (number >= links_max) return NVML_ERROR_INVALID_ARGUMENT;
      const auto found = device.links.find(number);
      return use(host, found == device.links.end() ? nullptr : &found->second);
    });
  });
}

template <class Use>
Return with_active_link(DeviceHandle handle, unsigned number, Use&& use) noexcept {
  return with_link(handle, number, [&](const Host& host, const report::Link* link) {
    return link ? use(host, *link) : NVML_ERROR_NOT_SUPPORTED;
  });
}

template <class Info>
Return give_remote(DeviceHandle handle, unsigned number, Info* out) noexcept {
  return with_active_link(handle, number, [&](const Host& host, const report::Link& link) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (link.remote_device) {  // as the program knows that device
      *out = pci_of<Info>(host.devices[*link.remote_device]);
      return NVML_SUCCESS;
    }
    *out = {};
    link.remote_bus_id_legacy.copy(out->busIdLegacy, sizeof(out->busIdLegacy) - 1);
    out->domain = link.remote_domain;
    out->bus = link.remote_bus;
    out->device = link.remote_pci_device;
    out->pciDeviceId = link.remote_pci_device_id;
    if constexpr (requires { out->busId; }) link.remote_bus_id.copy(out->busId, sizeof(out->busId) - 1);
    return NVML_SUCCESS;
  });
}

}  // namespace

// NCCL asks a device of compute capability 9.0 or higher for its links' state by this way alone.
std::optional<unsigned> link_field(const report::Device& device, unsigned field, unsigned number) {
  constexpr unsigned link_count = 91, link_state = 165, link_version = 166;
  if (device.links.empty()) return std::nullopt;
  if (field == link_count) return static_cast<unsigned>(device.links.size());
  if (number >= links_max) return std::nullopt;
  const auto link = device.links.find(number);
  if (field == link_state) return link == device.links.end() ? 0u : 1u;
  return field == link_version && link != device.links.end() ? std::optional(link->second.version) : std::nullopt;
}

NVML_EXPORT Return nvmlDeviceGetNvLinkState(DeviceHandle device, unsigned number, unsigned* active) {
  return with_link(device, number, [&](const Host&, const report::Link* link) { return give(link ? 1u : 0u, active); });
}
NVML_EXPORT Return nvmlDeviceGetNvLinkVersion(DeviceHandle device, unsigned number, unsigned* version) {
  return with_active_link(device, number,
                          [&](const Host&, const report::Link& link) { return give(link.version, version); });
}
NVML_EXPORT Return nvmlDeviceGetNvLinkCapability(DeviceHandle device, unsigned number, unsigned capability,
                                                 unsigned* has) {
  if (capability >= report::Link::capabilities_max) return NVML_ERROR_INVALID_ARGUMENT;
  return with_active_link(device, number, [&](const Host&, const report::Link& link) {
    return give(link.capabilities >> capability & 1u, has);
  });
}
NVML_EXPORT Return nvmlDeviceGetNvLinkRemotePciInfo_v2(DeviceHandle device, unsigned number, PciInfo* pci) {
  return give_remote(device, number, pci);
}
NVML_EXPORT Return nvmlDeviceGetNvLinkRemotePciInfo(DeviceHandle device, unsigned number, PciInfoShort* pci) {
  return give_remote(device, number, pci);
}
NVML_EXPORT Return nvmlDeviceGetNvLinkRemoteDeviceType(DeviceHandle device, unsigned number, unsigned* type) {
  return with_active_link(device, number,
                          [&](const Host&, const report::Link& link) { return give(link.remote_type, type); });
}

}  // namespace fargpu::client::nvml
