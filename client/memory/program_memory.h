#pragma once
// What an address of the program may be.

#include <cstdint>

#include "protocol/window.h"

namespace fargpu::client {

class HostMemory;
class MemoryMap;

struct ProgramMemory {
  const MemoryMap& map;
  const HostMemory& host;
  const Window& device_window;
  const Window& driver_band;

  /// Whether memory that CUDA does not know can lie there.
  bool pageable(std::uint64_t address) const {
    return address != 0 && !device_window.contains(address) && !driver_band.contains(address);
  }
};

}  // namespace fargpu::client
