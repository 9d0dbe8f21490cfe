#pragma once
// Connections that ask to be bulk lanes of a session.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "protocol/channel.h"

namespace fargpu::server {

class Session;

/// Whether this frame, the first on a connection, asks to be a bulk lane by this key.
bool asks_for_lane(std::span<const std::byte> lane_message, std::span<const std::byte> key) noexcept;
/// Answers it, and gives the connection to the session if it is known and the session (null: there is none yet) has
/// room.
void take_lane(Session* session, std::unique_ptr<Channel> channel, bool known) noexcept;

/// The server's end of a connection that goes on with TLS by a key that its client was given, under this name. Throws
/// as accept_tls().
std::unique_ptr<Channel> accept_by_key(int descriptor, const std::string& peer, std::span<const std::byte> name,
                                       std::span<const std::byte> secret);

}  // namespace fargpu::server
