#pragma once
// Threads in a process that may be a stranger's.

#include <functional>
#include <thread>

namespace fargpu {

/// Starts a thread on which signals sent to the process are blocked, because they are for the program's own threads.
/// What a thread does to itself is not: that ends the process at once where it is blocked. The name is for debuggers
/// (15 characters).
std::thread quiet_thread(const char* name, std::function<void()> body);

}  // namespace fargpu
