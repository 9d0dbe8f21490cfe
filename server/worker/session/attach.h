#pragma once
// From a client's attach message to a running session.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "driver_table.h"
#include "protocol/channel.h"
#include "protocol/window.h"
#include "rdma_offer.h"
#include "session.h"

namespace fargpu::server {

struct AttachOptions {
  /// Of the session, but for what the attach message decides: its windows and its compression.
  SessionOptions session;
  /// Addresses where the driver places what it places by itself; empty if that is nowhere in particular.
  Window driver_band;
  std::vector<std::byte> lane_key;  ///< by which the client's further connections are let in; empty for none
  /// To a client that wants it; null for none.
  std::shared_ptr<RdmaOffer> rdma;
  /// Puts something between the session and what it goes by instead of the connection; null for nothing.
  std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel>)> wrap;
  /// Told of the session while it runs, so that it can be stopped from another thread.
  std::function<void(Session*)> running;
  /// Told why a session that began is over, while what its client has sent is still being kept.
  std::function<void(const std::string& why)> over;
};

/// Answers the attach message and serves the session. Returns why it ended, for the log. Never throws for what a client
/// does.
std::string serve_session(Channel& channel, std::span<const std::byte> attach_message, DriverTable& driver,
                          AttachOptions options);

}  // namespace fargpu::server
