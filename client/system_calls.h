#pragma once
// System calls on managed memory. The kernel's own accesses to a page without access raise no signal, they fail with EFAULT: so
// calls whose buffer lies in the device window are stopped (seccomp(2), SECCOMP_RET_TRAP) and made when the pages are there.

#include <cstdint>

namespace fargpu::client {

class ManagedMemory;

/// From now on read, write, pread, pwrite, send and recv work on its pages in this process. Calls with vectors of buffers are not
/// seen (readv, writev, sendmsg, recvmsg). Sets PR_SET_NO_NEW_PRIVS: programs started by this one gain no privileges by being set-uid.
/// Does nothing when called again, and says so in the log where the system does not allow it. The window must begin and end at
/// multiples of 4 GiB. The memory must live as long as the process.
void watch_system_calls(ManagedMemory& memory, std::uint64_t window_base, std::uint64_t window_bytes);

}  // namespace fargpu::client
