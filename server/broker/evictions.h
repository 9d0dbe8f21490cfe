#pragma once
// Rooms among the broker's sessions: it hears what workers say, and they hear what it says.

#include <asio.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "rooms.h"
#include "server/exchange.h"
#include "settings.h"
#include "worker_link.capnp.h"

namespace fargpu::server {

/// A file without a name, for an evicted session: it goes with the last process that has it open. None, and errno, if
/// it cannot be made.
Descriptor make_evicted_file(const std::string& folder);

/// On the broker's thread. A session is known by its number.
class Evictions {
 public:
  Evictions(asio::io_context& io, const Settings& settings, Rooms::OnDevices on_devices);

  /// Whether this host evicts anything.
  bool any() const { return rules_.host_bytes_max > 0 || rules_.disk_bytes_max > 0; }
  /// A session begins; its worker hears on `link`.
  void begin(std::uint64_t session, const Rooms::Session& what, int link);
  /// It has ended; a second time does nothing.
  void end(std::uint64_t session);
  void worked(std::uint64_t session) { rooms_.worked(session, now()); }
  void heard(std::uint64_t session, wire::ResidencyNews::Reader news);
  void wants(std::uint64_t session, wire::RoomWish::Reader wish);
  /// An operator's wish. Why not; empty if the session was told.
  std::string evict(std::uint64_t session);
  /// As Rooms::outcome.
  std::optional<std::string> outcome(std::uint64_t session) const { return rooms_.outcome(session); }

  struct View : Rooms::View {
    std::uint64_t since = 0;  ///< Unix time, of the state; 0: from the beginning
  };
  View view(std::uint64_t session) const;
  std::uint64_t host_bytes() const { return rooms_.host_bytes(); }
  std::uint64_t disk_bytes() const { return rooms_.disk_bytes(); }
  /// Of all sessions, so far.
  std::uint64_t evicted() const { return evicted_; }
  std::uint64_t returned() const { return returned_; }

 private:
  struct Member {
    int link = -1;
    std::uint64_t since = 0;
    std::chrono::steady_clock::time_point began{};  // of the state
  };
  static Rooms::Time now() { return std::chrono::steady_clock::now(); }
  void tick();

  const RoomRules rules_;
  Rooms rooms_;
  std::map<std::uint64_t, Member> sessions_;
  std::uint64_t evicted_ = 0, returned_ = 0;
  asio::steady_timer timer_;
};

}  // namespace fargpu::server
