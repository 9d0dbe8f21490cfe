#pragma once
// A session whose connections break, and which goes on. docs/internals/resuming.md

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/connect/control_connection.h"
#include "protocol/meeting.h"
#include "protocol/resumable_channel.h"

namespace fargpu::client {

/// Makes a further connection to the host of a session, on which it has asked for what it is for. Throws.
using Connect = std::function<std::unique_ptr<Channel>(const LaneRequest& request)>;

/// Brings each connection of the session back, on a thread of its own while that lasts. Threads: any.
class Resumption : public std::enable_shared_from_this<Resumption> {
 public:
  struct Terms {
    std::uint64_t session = 0;
    std::vector<std::byte> lane_key, secret;
    std::string host;
    std::chrono::milliseconds time{};  ///< for which the worker waits
    /// What a connection that comes back becomes, if the worker begins with this; null for itself. `useless`: RDMA
    /// carried nothing the last time.
    std::function<GoOn(Channel& connection, wire::RdmaEnd::Reader heard, bool useless)> meet{};
  };
  Resumption(Connect connect, Terms terms) : connect_(std::move(connect)), terms_(std::move(terms)) {}

  /// The channel that goes on when this connection breaks. `number`: 0 for the session's own, next_lane() of others.
  std::shared_ptr<Channel> wrap(std::shared_ptr<Channel> connection, std::uint32_t number);
  std::uint32_t next_lane();

 private:
  using Clock = ResumableChannel::Clock;
  struct Link {
    std::weak_ptr<ResumableChannel> channel;
    std::vector<std::byte> secret;
    Clock::time_point since;        ///< that it has this connection
    std::uint64_t carried = 0;      ///< bytes of both directions, by all connections before this one
    unsigned useless = 0;           ///< connections in a row that broke soon and carried nothing of what there was
    Clock::time_point broken_at{};  ///< the break before these
  };
  void broke(std::uint32_t number, const ResumableChannel::Break& what) noexcept;
  void give_up(std::uint32_t number, const std::string& why) noexcept;
  void come_back(std::uint32_t number, const ResumableChannel::Break& what);
  void connect_again(ResumableChannel& channel, std::uint32_t number, const ResumableChannel::Break& what);
  void judge_last(Link& link, std::uint64_t carried, bool pending, const ResumableChannel::Break& what) const;
  void suspect_lanes(Clock::time_point before);
  Link link(std::uint32_t number);

  const Connect connect_;
  const Terms terms_;
  std::mutex mutex_;
  std::uint32_t lanes_ = 0;
  std::map<std::uint32_t, Link> links_;
};

}  // namespace fargpu::client
