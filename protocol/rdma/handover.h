#pragma once
// From a connection to a channel by RDMA: what both ends do, and say to each other, on a connection on which both know
// that RDMA is wanted. docs/internals/rdma.md has the whole.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "channel_rdma.h"
#include "context.h"
#include "control.capnp.h"
#include "protocol/channel.h"
#include "protocol/limits.h"

namespace fargpu::rdma {

/// What became of it.
struct HandedOver {
  std::optional<ChannelEnd> end;  ///< to be opened on the connection; none: that goes on as it is, for both ends
  std::string text;               ///< what it goes by, or why it does not
  std::string why_no_ring;        ///< not empty: why the ring that was given is not used

  /// What carries all that follows: the channel by RDMA, or the connection itself.
  std::unique_ptr<Channel> go_on(std::unique_ptr<Channel> connection) &&;
};

/// Either end calls it, when nothing is on its way on the connection. `devices`: null where there are none, of which
/// `why_none` tells the other end. `heard`: what the other end said first, if that has been read. `timeout`: for each
/// word of the other end. `ring`: as ChannelEnd's; where there can be no such end, there is one without it. Throws
/// ChannelClosed and ProtocolError.
HandedOver hand_over(Channel& connection, const std::shared_ptr<OpenedDevices>& devices, const std::string& why_none,
                     std::optional<wire::RdmaEnd::Reader> heard = {},
                     std::chrono::milliseconds timeout = limits::rdma_timeout,
                     const std::shared_ptr<std::byte>& ring = nullptr);

}  // namespace fargpu::rdma
