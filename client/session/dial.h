#pragma once
// Getting a session: hello, lease, ticket, attach. What is said here is described in protocol/control.capnp.

#include <cuda.h>

#include <functional>
#include <memory>
#include <string>

#include "client/base/config.h"
#include "client/connect/control_connection.h"
#include "client/connect/rdma_choice.h"
#include "place.h"
#include "protocol/channel.h"
#include "resumption.h"
#include "session.h"

namespace fargpu::client {

/// Dials the hosts of the configuration in order; the first that offers a session gets it. Throws DialError.
std::unique_ptr<Session> dial(const Config& config);
/// A session of a lease that is held: `wish` names its job. Throws DialError.
std::unique_ptr<Session> dial(const Config& config, const PoolHost& host, const LeaseOptions& wish, const Place& place);

/// Throws DialError unless the host is reached in the way that the configuration wants.
void require_transport(const Config& config, const ControlConnection& broker);

/// The attach step alone, on a connection whose other end is a worker: for tests that have one in this process. Without
/// `connect` the session has no bulk lanes, and ends with its connection. `rdma`: what this side has for it. `place`:
/// among several.
std::unique_ptr<Session> attach(std::unique_ptr<Channel> channel, std::span<const std::byte> ticket,
                                const Config& config, const std::string& host_name, Connect connect = {},
                                const RdmaChoice& rdma = {}, const Place& place = {});

}  // namespace fargpu::client
