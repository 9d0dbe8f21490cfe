#pragma once
// A session among those of its process.

#include <cstdint>
#include <string>
#include <vector>

#include "client/connect/facts.h"

namespace fargpu::client {

/// Where other hosts reach the session's host.
struct PeerPlace {
  std::string host;  ///< empty: they do not
  std::uint16_t port = 0;
  bool encrypted = false;
};

struct Place {
  unsigned origin = 0;  ///< its number
  PeerPlace peer;
  /// All devices of the program, in its order; those of other hosts have no number at the worker (-1). None: the
  /// program has the session's devices.
  std::vector<Device> devices;
};

}  // namespace fargpu::client
