#pragma once
// What a process takes of the host's memory.

#include <sys/types.h>

#include <cstdint>

namespace fargpu::server {

/// Bytes that lie in the host's memory and that no other process has: as the kernel tells everybody (proc(5), statm).
/// 0 if there is no such process. Memory that the driver pins by itself is not among it.
std::uint64_t private_bytes(pid_t process);

}  // namespace fargpu::server
