#pragma once
// A host's part in a pool: it tells what it has, asks for leases of its clients, and hears of leases that are placed at
// it. One of the members also places (placer.h).

#include <asio.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "placer.h"
#include "records.h"
#include "registry.h"

namespace fargpu::server::pool {

/// Why there is no placement.
struct Refusal {
  bool may_change = false;  ///< it is a matter of what others hold now
  std::string text;
};

/// A client's request, while it lives. It is taken back when the object goes before its answer.
class Request {
 public:
  virtual ~Request() = default;
  using Answer = std::variant<std::vector<Part>, Refusal>;
  /// Nothing while it waits.
  virtual const std::optional<Answer>& answer() const = 0;
  /// Names the placement at its hosts.
  virtual const std::string& id() const = 0;
  /// Called once there is an answer.
  std::function<void()> answered;
};

/// What a member's host does. All of it is called on the member's thread, and returns at once.
struct HostDuties {
  std::function<HostRecord()> describe;
  std::function<RoomRecord()> room;  ///< without `seen`
  /// A lease was placed here: the host keeps it from now on, for a while, until its client comes. False: it has no room
  /// for it after all.
  std::function<bool(const std::string& id, const LeaseRecord& lease)> admit;
  /// This lease, which the host keeps, is not wanted any more; if its client has come it stays.
  std::function<void(const std::string& id)> withdraw;
  /// Everything that the host keeps, by what admit() called it.
  std::function<std::map<std::string, LeaseRecord>()> kept;
  std::function<void()> joined;  ///< the host is a member now; may be empty
  Log log;
};

struct MemberOptions {
  std::string pool;
  std::string host;      ///< its name in the pool
  std::string identity;  ///< the same for the broker that takes this host over, and for no other host
  bool places = true;    ///< it may become the placer
};

class Member {
 public:
  Member(asio::io_context& io, Registry& registry, MemberOptions options, HostDuties duties);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// Joins, and joins again whenever the registry was away.
  void start();
  /// Leaves the pool, and calls `left` then, within seconds. Without it the host counts as a member for some seconds
  /// more, in which its next broker may join.
  void stop(std::function<void()> left);

  /// Takes back what clients wait for, and asks for nothing more: `done` is called then. Everything else stays for the
  /// host's next broker.
  void withdraw_requests(std::function<void()> done);

  /// What describe() or room() tell has changed.
  void changed();
  /// Until every member shows what has changed, and a few seconds at most.
  asio::awaitable<void> shown();
  /// A lease that the host kept has ended.
  void ended(const std::string& id);
  /// Leases of a request of this host that its client has given up, at these hosts.
  void given_up(const std::string& id, const std::vector<std::string>& hosts);
  /// A lease that the host has given without the registry.
  void entered(const std::string& id, const LeaseRecord& lease);

  /// Asks for a lease; never null. `waits`: the answer may take its time.
  std::shared_ptr<Request> request(const RequestRecord& wish);
  /// The record of a lease that was placed here, if there is one: for a client that comes before it.
  asio::awaitable<std::optional<LeaseRecord>> find(std::string id);

  /// Whether requests can be answered. If not, trouble() says why.
  bool in_touch() const;
  std::string trouble() const;
  /// The trouble is another host that is a member under this one's name.
  bool name_is_taken() const;
  /// When it was in touch last. Long ago, if it never was.
  std::chrono::steady_clock::time_point lost_at() const;
  bool is_placer() const;
  const MemberOptions& options() const { return options_; }
  const PlacerCounts* counts() const;  ///< of the placer, if it is this member

  /// The whole pool, for people; not older than a second.
  asio::awaitable<std::shared_ptr<const PoolView>> view();
  /// Throws RegistryError.
  asio::awaitable<void> set_tenant(std::string tenant, std::optional<TenantRecord> limits);

 private:
  class State;
  const MemberOptions options_;
  const std::shared_ptr<State> state_;
};

}  // namespace fargpu::server::pool
