#pragma once
// A range of addresses that client and worker keep free, so that what lies in it has the same address on both sides.

#include <cstdint>

namespace fargpu::server {

struct Window {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
};

}  // namespace fargpu::server
