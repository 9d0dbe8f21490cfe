#pragma once
// Which system calls are stopped: those that read or write one buffer, where that lies in certain memory.

#include <linux/filter.h>

#include <array>
#include <cstdint>
#include <vector>

#include "client/connect/windows.h"

namespace fargpu::client {

/// In the sixth argument of calls that are let pass, which none of them uses. Forked children inherit the filter.
constexpr std::uint64_t let_pass = 0x6661726770750001;

/// A program for seccomp(2) that stops (SECCOMP_RET_TRAP) read, write, pread, pwrite, sendto and recvfrom whose buffer
/// begins in one of these windows, or right beside, and that this process makes as it makes such calls now: by its C
/// library, or in the text of the program. x86-64.
std::vector<sock_filter> call_filter(const std::array<Window, 2>& windows);

}  // namespace fargpu::client
