#pragma once
// What the worker's process may still do, since it executes what strangers sent.

#include <string>

namespace fargpu::server {

/// Becomes this user, with its groups, for good. Throws SystemError. Only root can.
void become_user(const std::string& name);

/// Gives up, for good, what neither the worker nor NVIDIA's driver needs: starting programs, tracing and signalling
/// other processes and setting their limits and priorities, sockets of networks, mounts, namespaces, kernel modules and
/// the like, and all capabilities; and gains no privileges any more. Before the driver is loaded. Throws SystemError.
void enter_sandbox();

/// From now on no other process of the same user can look into this one's memory either.
void hide_memory();

}  // namespace fargpu::server
