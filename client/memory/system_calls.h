#pragma once
// System calls on memory whose pages come and go. The kernel's own accesses to a page without access raise no signal,
// they fail with EFAULT: so calls whose buffer lies where such memory can be are stopped (seccomp(2), SECCOMP_RET_TRAP)
// and made when the pages are there.

#include <array>
#include <cstddef>
#include <cstdint>

#include "client/connect/windows.h"

namespace fargpu::client {

class WatchedPages;

/// From now on read, write, pread, pwrite, send and recv work on its pages in this process (of calls with vectors of
/// buffers see vector_calls.h). Sets PR_SET_NO_NEW_PRIVS: programs started by this one gain no privileges by being
/// set-uid. Does nothing when called again, and says so in the log where the system does not allow it. The memory must
/// live as long as the process.
void watch_system_calls(WatchedPages& memory, std::size_t kind, const std::array<Window, 2>& windows);

/// Filters are inherited: where a program that watches its system calls has started this one, and the C library or the
/// program's text lies at the same addresses, calls are stopped here too. To be called before the memory is there that
/// this may happen to.
void expect_system_calls();

/// A system call is about to use [address, address + bytes): what of it lies in such memory is made usable.
void touch_pages(std::uint64_t address, std::uint64_t bytes, bool writing) noexcept;

/// So often a call is made again that has failed because another thread gave pages to the GPU meanwhile.
constexpr int calls_again_max = 100;
/// Whether a call on this file that has failed with EFAULT has taken nothing, so that it can be made again: `reading`
/// from a socket may have.
bool may_call_again(int file, bool reading) noexcept;

}  // namespace fargpu::client
