#pragma once
// A channel by RDMA. Each end has a ring that the other one writes: small pieces come as messages, which the receiving
// end copies there, larger ones are put there by the device. A message then says how far the ring is written, and how
// far the sender has read its own.
//
// UCX works only while a thread lets it: what was sent is sure to arrive while some thread receives or waits, at both
// ends, as sessions and lanes always have one.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "context.h"
#include "protocol/channel.h"

namespace fargpu::rdma {

inline constexpr std::size_t secret_bytes = 16;

/// What an end must know of the other one. Shown to nobody else: a peer that has it can write into the stream.
struct EndFacts {
  std::vector<std::byte> address;
  std::vector<std::byte> key;  ///< to the ring
  std::uint64_t ring = 0;      ///< its address
  std::uint64_t ring_bytes = 0;
  std::vector<std::byte> secret;  ///< in each message to this end; others are not heard
};

class RdmaChannel;

/// One end, before there is a channel. One thread at a time.
class ChannelEnd {
 public:
  /// `ring`: memory of a GPU of so many bytes for the ring, kept as long as the line is; null: memory of the line's
  /// own. Throws RdmaError.
  ChannelEnd(std::shared_ptr<OpenedDevices> devices, std::size_t ring_bytes, std::shared_ptr<std::byte> ring = nullptr);
  ~ChannelEnd();
  ChannelEnd(ChannelEnd&&) noexcept;
  ChannelEnd& operator=(ChannelEnd&&) noexcept;

  const EndFacts& facts() const;
  /// Throws RdmaError, and ProtocolError for facts that no end has.
  void connect(const EndFacts& other);
  /// Says so to the other end and waits until that one has as well. Throws RdmaError.
  void meet(std::chrono::milliseconds timeout);
  /// The transports and devices it goes by, for people.
  std::string describe() const;

  /// The channel, once the ends have met. `connection` tells when the other end is gone, and carries nothing any more.
  std::unique_ptr<Channel> open(std::shared_ptr<Channel> connection) &&;

 private:
  std::unique_ptr<RdmaChannel> channel_;
};

}  // namespace fargpu::rdma
