#pragma once
// The scheduler among the broker's sessions: it hears what workers say, and they hear what it says.

#include <asio.hpp>

#include <cstdint>
#include <map>
#include <string>

#include "server/scheduler/scheduler.h"
#include "worker_link.capnp.h"

namespace fargpu::server {

/// On the broker's thread. A session is known by its number, as everywhere in the broker.
class Scheduling {
 public:
  Scheduling(asio::io_context& io, const scheduler::Rules& rules);

  const scheduler::Rules& rules() const { return scheduler_.rules(); }
  void set_rules(const scheduler::Rules& rules);

  /// A session begins, as part of this lease; its worker hears of its turns on `link`. Sessions of one lease have equal
  /// shares.
  void begin(std::uint64_t session, std::uint64_t lease, const scheduler::Share& share, int link);
  /// It has ended; a second time does nothing.
  void end(std::uint64_t session);
  /// False if there is no such session.
  bool change(std::uint64_t session, const scheduler::Share& share);
  void heard(std::uint64_t session, wire::Activity::Reader activity);

  /// Of the session's lease; nothing if there is no such session.
  std::optional<scheduler::Scheduler::View> view(std::uint64_t session) const;
  std::optional<scheduler::Scheduler::View> view_of_lease(std::uint64_t lease) const { return scheduler_.view(lease); }
  /// How much was said about its turns, by both sides.
  std::uint64_t words(std::uint64_t session) const;

 private:
  struct Member {
    std::uint64_t lease = 0;
    int link = -1;
    std::uint64_t words = 0;
  };
  static scheduler::Time now() { return std::chrono::steady_clock::now().time_since_epoch(); }
  void tell(std::uint64_t lease, const scheduler::Turn& turn);
  void send(Member& member, const scheduler::Turn& turn);
  void tick();

  scheduler::Scheduler scheduler_;
  std::map<std::uint64_t, Member> sessions_;
  std::map<std::uint64_t, std::size_t> leases_;  // and how many sessions each has
  asio::steady_timer timer_;
};

}  // namespace fargpu::server
