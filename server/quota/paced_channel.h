#pragma once
// A connection that keeps to its lease's bandwidth.

#include <memory>

#include "bandwidth.h"
#include "protocol/channel.h"

namespace fargpu::server {

/// The channel, through which no more goes than the bandwidth lets. Messages of a few kilobytes go out at once and are
/// paid for afterwards, so that answers do not wait behind contents of memory. `first`: comes before other channels of
/// the lease, within bounds.
std::unique_ptr<Channel> pace(std::unique_ptr<Channel> channel, std::shared_ptr<Bandwidth> bandwidth, bool first);

}  // namespace fargpu::server
