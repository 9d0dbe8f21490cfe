#pragma once
// Connections that ask to be bulk lanes of a session.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "protocol/channel.h"
#include "protocol/meeting.h"
#include "rdma_offer.h"

namespace fargpu::server {

class Session;

/// What a frame asks for that is the first on a further connection of a session.
struct LaneWish {
  bool known = false;         ///< by the right key
  std::uint32_t channel = 0;  ///< number of the connection in the session
  bool resumes = false;       ///< in place of that one, which broke
};
LaneWish read_lane(std::span<const std::byte> lane_message, std::span<const std::byte> key) noexcept;
/// Answers one that asks to be a bulk lane, and gives the connection to the session if it is known and the session
/// (null: there is none yet) has room.
void take_lane(Session* session, std::unique_ptr<Channel> channel, const LaneWish& wish) noexcept;

/// The lane that takes the connection's place, for a session that goes by RDMA: both ends have to meet by it. Null if
/// they do not. Takes as long as the other end likes, within limits::rdma_timeout.
std::unique_ptr<Channel> lane_by_rdma(std::unique_ptr<Channel> connection, const RdmaOffer& offer) noexcept;

/// What a connection of such a session becomes that comes back: itself, if the ends do not meet by RDMA any more.
/// `lane`: it is a bulk lane. The other end has limits::connect_timeout for each word. Throws ChannelClosed and
/// ProtocolError.
GoOn meet_by_rdma(Channel& connection, const RdmaOffer& offer, bool lane);

/// The server's end of a connection that goes on with TLS by a key that its client was given, under this name. Throws
/// as accept_tls().
std::unique_ptr<Channel> accept_by_key(int descriptor, const std::string& peer, std::span<const std::byte> name,
                                       std::span<const std::byte> secret);

}  // namespace fargpu::server
