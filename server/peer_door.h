#pragma once
// How a worker gets at the workers of other hosts: by the brokers of both.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol/channel.h"

namespace fargpu::server {

/// The target of a link, as the client has named it.
struct PeerAddress {
  std::string host;
  std::uint16_t port = 0;
  std::uint64_t session = 0;
  std::vector<std::byte> key;
  bool encrypted = false;  ///< its broker speaks TLS
};

/// A connection that the target of a link has taken.
struct PeerConnection {
  std::unique_ptr<Channel> channel;
  bool rdma = false;  ///< it goes by RDMA
};

/// Threads: any. Everything takes a while, but only a while.
class PeerDoor {
 public:
  virtual ~PeerDoor() = default;
  /// From now on connections that know this key come in. False if nobody is there to let them in.
  virtual bool admit(std::span<const std::byte> key) = 0;
  /// They do not any more.
  virtual void shut_out(std::span<const std::byte> key) = 0;
  /// A connection that is this channel of a link. Throws ChannelClosed and others, whose text says why there is none.
  virtual PeerConnection connect(const PeerAddress& address, std::uint32_t channel) = 0;
};

}  // namespace fargpu::server
