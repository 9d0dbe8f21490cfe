#pragma once
// Address ranges of this process that are reserved for the session, so that device and pinned addresses mean the same
// on both sides and nothing of the program can come to lie there.

#include <cstdint>
#include <vector>

#include "protocol/window.h"

namespace fargpu::client {

/// Candidates that could be reserved here, in order of preference; they are now reserved (without access). `origin`:
/// the number of the session in its process, which has places of its own.
std::vector<Window> reserve_device_windows(unsigned origin = 0);
std::vector<Window> reserve_host_windows(unsigned origin = 0);
/// Gives a reservation up.
void release_window(const Window& window);

}  // namespace fargpu::client
