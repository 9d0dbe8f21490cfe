#pragma once
// A range of addresses that client and worker keep free, so that what lies in it has the same address on both sides.

#include <cstdint>

namespace fargpu {

struct Window {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  bool contains(std::uint64_t address) const { return address - base < bytes; }
};

/// Reserves exactly this range of the process, without access; false if something lies there.
bool reserve_window(const Window& window);

}  // namespace fargpu
