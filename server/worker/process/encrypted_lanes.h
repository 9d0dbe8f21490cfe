#pragma once
// Bulk lanes of a session that speaks TLS.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "protocol/channel.h"
#include "server/exchange.h"
#include "server/worker/session/lane_requests.h"

namespace fargpu::server {

/// A connection that knows the name of the session's lane key gets a handshake, on a thread of its own, because it
/// takes as long as the other end likes; only the client has the rest of the key. Never destroyed while a handshake is
/// under way.
class EncryptedLanes {
 public:
  /// `key` outlives this. `give`: what becomes of a connection after its handshake; called by any thread.
  using Give = std::function<void(std::unique_ptr<Channel>, const LaneWish&)>;
  EncryptedLanes(std::span<const std::byte> key, Give give);

  void asked(Descriptor descriptor, std::span<const std::byte> lane_message);

 private:
  const std::span<const std::byte> name_, secret_;
  const Give give_;
  std::atomic<unsigned> under_way_{0};
};

}  // namespace fargpu::server
