#pragma once
// Threads of the library's own in a stranger's process.

#include <functional>

namespace fargpu::client {

/// Starts a detached thread on which signals sent to the process are blocked, so that the program's handlers run on the
/// program's threads. It ends with the process. The name is for debuggers (15 characters).
void start_thread(const char* name, std::function<void()> body);
/// Whether the calling thread was started so.
bool is_own_thread();

}  // namespace fargpu::client
