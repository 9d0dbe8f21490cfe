#pragma once
// Where the process has its mappings: away from where a client's process has its own, so that addresses that the driver
// chooses by itself (module globals) can be reserved there.

#include "protocol/window.h"

namespace fargpu::server {

/// Starts the program again with mappings in another place; returns in the new program, and where that is not to be
/// had. To be called by main() first.
void displace(char** arguments);

/// Where mappings of this process begin to be placed, downwards, as a band to reserve; empty unless the process was
/// displaced.
Window displaced_band();

}  // namespace fargpu::server
