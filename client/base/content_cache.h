#pragma once
// FARGPU_CONTENT_CACHE.

#include <cstdint>

namespace fargpu::client {

/// Whether contents that the host has kept are named instead of sent.
enum class ContentCache {
  never,
  usual,      ///< as `automatic`, but never by the loopback, which is faster than hashing
  automatic,  ///< where that gains time
  always,     ///< all large copies
};

/// What of it was agreed with a host.
struct ContentTerms {
  ContentCache cache = ContentCache::never;
  std::uint64_t bytes_max = 0;  ///< that the host keeps of the tenant's; 0: none
};

}  // namespace fargpu::client
