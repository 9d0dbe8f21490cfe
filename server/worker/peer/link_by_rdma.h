#pragma once
// What a connection of a link goes on by, before it carries anything, as its source hears it: RDMA, if both ends have
// it for this connection. docs/internals/rdma.md has the order of what is said.

#include <memory>

#include "protocol/channel.h"
#include "protocol/rdma/context.h"
#include "server/peer_door.h"

namespace fargpu::server {

/// `lane` of this end has said whether there are `devices`: the target's answer, and what the connection has
/// become. Throws ChannelClosed with the target's reason if it does not take the connection, and if it is lost, and
/// ProtocolError. Takes as long as the target likes, within limits::connect_timeout and limits::rdma_timeout.
PeerConnection hear_target(std::unique_ptr<Channel> connection, const std::shared_ptr<rdma::OpenedDevices>& devices);

}  // namespace fargpu::server
