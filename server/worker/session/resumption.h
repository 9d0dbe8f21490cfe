#pragma once
// A session whose connections break, and which goes on. docs/internals/resuming.md

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "control.capnp.h"
#include "protocol/meeting.h"
#include "protocol/resumable_channel.h"

namespace fargpu::server {

/// Lets the session's client come back on new connections. Threads: any; lives as long as the session.
class Resumption {
 public:
  using Break = ResumableChannel::Break;
  struct Options {
    std::chrono::milliseconds time{};                           ///< for which the client is waited for
    std::function<bool()> clock_stands = [] { return false; };  ///< while it could not come
    /// Hears that the session's own connection broke, and, by null, that it is back: from where.
    std::function<void(const Break* what, const std::string& peer)> tell = [](const Break*, const std::string&) {};
  };
  /// Throws SystemError if there are no random numbers.
  explicit Resumption(Options options);

  std::chrono::milliseconds time() const { return options_.time; }
  /// With which connections are resumed for the first time.
  std::span<const std::byte> first_secret() const { return first_secret_; }

  /// The channel that goes on when this connection breaks. `number`: 0 for the session's own. Throws ProtocolError for
  /// a number that was given before, or that is too high.
  std::shared_ptr<ResumableChannel> wrap(std::shared_ptr<Channel> connection, std::uint32_t number);

  /// A connection by which the client says it is back; who it is shows by what it says now. Waits for that. `meet`:
  /// what the connection becomes then; null for itself.
  void claim(std::unique_ptr<Channel> connection, const Meet& meet = {}) noexcept;

 private:
  using Secret = std::vector<std::byte>;
  struct Link {
    std::shared_ptr<ResumableChannel> channel;
    std::uint32_t epoch = 0;
    Secret secret, former;  // for this epoch, and for the one before
  };
  std::string impatience(const Break& what);
  std::string refusal(const Link& link, wire::Resume::Reader resume) const;

  const Options options_;
  const Secret first_secret_;
  std::mutex mutex_;
  std::map<std::uint32_t, Link> links_;
  // Of the session's own connection.
  ResumableChannel::Clock::time_point broken_at_{}, looked_at_{}, returned_at_{};
  ResumableChannel::Clock::duration waited_{};
  ResumableChannel::Clock::time_point lane_ended_at_{};  // when a lane was last closed in order
};

}  // namespace fargpu::server
