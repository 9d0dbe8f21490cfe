#pragma once
// Packets between a broker and its worker: one Cap'n Proto message each, with at most one descriptor.

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "protocol/message.h"
#include "worker_link.capnp.h"

namespace fargpu::server {

struct LinkPacket {
  std::vector<std::byte> message;  ///< empty: the other end is gone
  int descriptor = -1;             ///< owned by the receiver
  bool had_more = false;           ///< descriptors, which are the receiver's no more
};

/// A connected pair of packet sockets, close-on-exec.
std::pair<int, int> make_link();

/// Lets a packet socket take as much as one of these, before it is read.
void give_room(int link);

/// Sends one message; `descriptor` is passed along if it is not -1. Never waits: neither end is held up by the other.
/// False if the other end is gone, or has not read for so long that there is no room.
bool send_link(int link, const std::function<void(wire::WorkerMessage::Builder)>& fill, int descriptor = -1);

/// Sends a message that is made already.
bool send_packet(int link, std::span<const std::byte> bytes, int descriptor = -1);

/// Receives one packet; waits for it if the socket is blocking. Nothing if it is not and none is there. `others` gets
/// descriptors beyond the packet's; without it, they are closed.
std::optional<LinkPacket> receive_link(int link, std::vector<int>* others = nullptr);

}  // namespace fargpu::server
