#pragma once
// What an address of the program may be.

#include <array>
#include <atomic>
#include <cstdint>

#include "protocol/window.h"

namespace fargpu::client {

class HostMemory;
class MemoryMap;

/// Where device memory of the sessions of a process lies, if it has several. Threads: any.
class DeviceWindows {
 public:
  static constexpr std::size_t windows_max = 16;
  /// For as long as the process lives; of each session its window and its driver's band.
  static void add(const Window& window);
  static bool any(std::uint64_t address) {
    const std::size_t count = count_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i)
      if (windows_[i].contains(address)) return true;
    return false;
  }

 private:
  static std::array<Window, windows_max> windows_;
  static std::atomic<std::size_t> count_;
};

struct ProgramMemory {
  const MemoryMap& map;
  const HostMemory& host;
  const Window& device_window;
  const Window& driver_band;

  /// Whether memory that CUDA does not know can lie there.
  bool pageable(std::uint64_t address) const {
    return address != 0 && !device_window.contains(address) && !driver_band.contains(address) &&
           !DeviceWindows::any(address);
  }
};

}  // namespace fargpu::client
