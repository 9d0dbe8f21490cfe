#pragma once
// What the kernel says of a PCI device.

#include <cstdint>

namespace fargpu::server {

struct PciIds {
  std::uint32_t device = 0;     ///< device id above vendor id; 0 if unknown
  std::uint32_t subsystem = 0;  ///< of the board: device id above vendor id
};

/// Reads /sys/bus/pci/devices/<domain:bus:device.0>.
PciIds pci_ids(unsigned domain, unsigned bus, unsigned device);

}  // namespace fargpu::server
