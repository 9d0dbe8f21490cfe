#pragma once
// Requests of administrators of a GPU host.

#include <functional>
#include <string>

#include "client/connect/control_connection.h"

namespace fargpu::client::cli {

/// The one host that a command of administration is about: --host, --pool or FARGPU_POOL.
PoolHost one_host(const std::string& text);

/// Asks for it, and has `show` tell what holds when it is done. The exit code of the command.
int administer(const std::string& host, const std::function<void(wire::AdministrationRequest::Builder)>& fill,
               const std::function<void(wire::Status::Reader)>& show,
               std::chrono::milliseconds timeout = limits::connect_timeout);

}  // namespace fargpu::client::cli
