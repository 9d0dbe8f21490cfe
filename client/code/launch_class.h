#pragma once
// Which launches are accepted or refused together.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "client/objects/context.h"

namespace fargpu::client {

/// Fingerprint of what decides, besides the function, whether a launch is accepted.
class LaunchClass {
 public:
  void add(std::uint64_t value) {
    hash_ ^= value + 0x9E3779B97F4A7C15 + (hash_ << 6) + (hash_ >> 2);
    hash_ *= 0xFF51AFD7ED558CCD;
  }
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const { return hash_ ? hash_ : 1; }

 private:
  std::uint64_t hash_ = 0x243F6A8885A308D3;
};

/// Fingerprint of a block with its shared memory and cluster, of which the driver has said that the device has room for
/// some.
std::uint64_t fit_of(const Context& context, const unsigned (&block)[3], unsigned shared_bytes,
                     const unsigned (&cluster)[3]);

}  // namespace fargpu::client
