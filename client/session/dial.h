#pragma once
// Getting a session: hello, lease, ticket, attach. What is said here is described in protocol/control.capnp.

#include <cuda.h>

#include <functional>
#include <memory>
#include <string>

#include "client/base/config.h"
#include "client/connect/control_connection.h"
#include "protocol/channel.h"
#include "session.h"

namespace fargpu::client {

/// Dials the hosts of the configuration in order; the first that offers a session gets it. Throws DialError.
std::unique_ptr<Session> dial(const Config& config);

/// Makes a further connection to the host of a session, on which it has asked to be a bulk lane by this key. Throws.
using Connect = std::function<std::unique_ptr<Channel>(std::uint64_t session, std::span<const std::byte> key)>;

/// The attach step alone, on a connection whose other end is a worker: for tests that have one in this process. Without
/// `connect` the session has no bulk lanes.
std::unique_ptr<Session> attach(std::unique_ptr<Channel> channel, std::span<const std::byte> ticket,
                                const Config& config, const std::string& host_name, Connect connect = {});

}  // namespace fargpu::client
