#pragma once
// Sessions of a fargpud that died: they go on, and the next one has nothing of them in its books.

#include <sys/types.h>

#include <string>
#include <vector>

namespace fargpu::server {

/// Processes of this worker program that are no running fargpud's, as far as this process can see others. Not those
/// with a door, at which the next one of their host has knocked.
std::vector<pid_t> orphaned_workers(const std::string& worker);

}  // namespace fargpu::server
