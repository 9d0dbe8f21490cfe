#pragma once
// A range of device memory, by its addresses.

#include <cstdint>

namespace fargpu::server {

struct DeviceRange {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;

  bool overlaps(const DeviceRange& other) const {
    return address < other.address ? other.address - address < bytes : address - other.address < other.bytes;
  }
};

}  // namespace fargpu::server
