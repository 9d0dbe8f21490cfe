#include "pci.h"

#include <fmt/format.h>

#include <fstream>
#include <string>

namespace fargpu::server {

PciIds pci_ids(unsigned domain, unsigned bus, unsigned device) {
  const std::string folder = fmt::format("/sys/bus/pci/devices/{:04x}:{:02x}:{:02x}.0/", domain, bus, device);
  const auto number = [&](const char* name) {
    std::uint32_t value = 0;
    std::ifstream(folder + name) >> std::hex >> value;
    return value;
  };
  return {number("device") << 16 | number("vendor"), number("subsystem_device") << 16 | number("subsystem_vendor")};
}

}  // namespace fargpu::server
