#pragma once
// Control messages one at a time, before (or without) a session: read exactly, so that whatever follows on the
// connection is left for its next reader.

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "channel.h"
#include "control.capnp.h"

namespace fargpu {

/// Sends a control message as frame number `sequence`; waits as long as it takes. Throws ChannelClosed.
void send_control(Channel& channel, std::uint32_t sequence, const std::function<void(wire::Control::Builder)>& fill);

/// Receives one frame that holds a control message and nothing else, and returns the message. Throws ChannelClosed
/// (also when the time is over) and ProtocolError.
std::vector<std::byte> receive_control(Channel& channel, std::chrono::milliseconds timeout);

}  // namespace fargpu
