#pragma once
// Descriptors over Unix sockets (SCM_RIGHTS).

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <vector>

namespace fargpu {

/// Sends bytes, and with them this descriptor unless it is -1. Never waits. Returns as send().
ssize_t send_with_descriptor(int socket, std::span<const std::byte> bytes, int descriptor);

/// Receives bytes, and the descriptor that came with them, which is close-on-exec and the caller's: -1 if there was
/// none. If a peer sends more than one at a time, `others` gets them; if it is null, the kernel closes them. `flags` as
/// recv(); returns as recv().
ssize_t receive_with_descriptor(int socket, std::span<std::byte> buffer, int& descriptor, int flags = 0,
                                std::vector<int>* others = nullptr);

}  // namespace fargpu
