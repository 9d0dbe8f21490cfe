#pragma once
// Links between the workers of two hosts, by which copies and waits go without this process in between.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "client/base/job_thread.h"
#include "protocol/row_chunks.h"

namespace fargpu::client {

class Calls;
class Session;

/// Goes from the worker of one session to that of the other, and has the same number at both.
struct Link {
  Link(std::uint32_t number_of_both, Session& source, Session& target)
      : number(number_of_both), from(source), to(target) {}

  /// The number of a new transfer of this shape.
  std::uint32_t next_transfer(const CopyShape& shape) {
    return (lane_class(shape) == LaneClass::small ? small_ : large_).fetch_add(2);
  }
  std::uint64_t next_event() { return events_.fetch_add(1); }
  /// A transfer's place in a copy: as the wire has it.
  std::uint64_t place(std::uint32_t transfer) const { return std::uint64_t{number} << 32 | transfer; }

  const std::uint32_t number;
  Session& from;
  Session& to;
  std::atomic<bool> lost{false};
  bool rdma = false;  ///< set while it is made

 private:
  std::atomic<std::uint32_t> large_{2}, small_{1};
  std::atomic<std::uint64_t> events_{1};
};

/// Threads: any.
class Links {
 public:
  /// Makes one when it is first asked for, which takes a few round trips, once. Null where the hosts do not reach each
  /// other, of which one line tells.
  std::shared_ptr<Link> between(Session& from, Session& to);
  /// The session is lost: the workers of others do not wait for it any more.
  void lost(const Session& session) noexcept;
  /// A worker says that a link of its own is lost.
  void lost(const Calls& by, std::uint32_t number, const std::string& why);

 private:
  /// A link that is lost is made again, but not without end.
  static constexpr unsigned made_max = 4;

  struct Pair {
    std::shared_ptr<Link> link;
    unsigned made = 0;
    bool making = false;
    bool refused = false;
  };
  using Ends = std::pair<Session*, Session*>;
  std::string make(Link& link);
  static std::string make(Link& link, bool& offered);
  static void close(Session& session, const Link& link) noexcept;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Ends, Pair> pairs_;
  std::uint32_t next_ = 1;
  /// On a thread of its own: errors of earlier calls are for the thread that made these.
  JobThread maker_{"fargpu-links"};
};

}  // namespace fargpu::client
