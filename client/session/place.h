#pragma once
// A session among those of its process.

#include <vector>

#include "client/connect/facts.h"

namespace fargpu::client {

struct Place {
  unsigned origin = 0;  ///< its number
  /// All devices of the program, in its order; those of other hosts have no number at the worker (-1). None: the
  /// program has the session's devices.
  std::vector<Device> devices;
};

}  // namespace fargpu::client
