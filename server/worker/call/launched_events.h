#pragma once
// Events that a launch itself records, by its attributes.

#include <cstdint>
#include <vector>

#include "operations.capnp.h"

namespace fargpu::server {

inline std::vector<std::uint64_t> events_in(capnp::List<wire::LaunchAttribute>::Reader attributes) {
  std::vector<std::uint64_t> events;
  for (const auto attribute : attributes)
    if (attribute.getHandle() != 0) events.push_back(attribute.getHandle());
  return events;
}

}  // namespace fargpu::server
