#pragma once
// This host's part in a pool of many: what it tells the pool's registry of itself, and the leases that are placed here
// by it.

#include <asio.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lease.h"
#include "server/pool/member.h"
#include "unreached.h"

namespace fargpu::server {

/// As the registry writes it.
std::string text_of(const JobKey& job);
std::optional<JobKey> parse_job(const std::string& text);

/// Between the broker's books and the pool's member. Everything runs on the broker's one thread.
class PoolHost {
 public:
  /// For which a lease is kept that was placed here and whose client has not come.
  static constexpr auto kept_for = std::chrono::seconds(30);

  /// What is asked of the broker.
  struct Facts {
    std::function<std::vector<pool::HostRecord::Device>()> devices;  ///< with their names; their memory is the books'
    std::function<std::size_t()> sessions_taken;
    std::function<pool::RoomRecord::State()> state;
    std::size_t sessions_max = 0;
  };
  PoolHost(asio::io_context& io, pool::Registry& registry, pool::MemberOptions options, Leases& leases, Facts facts);
  PoolHost(const PoolHost&) = delete;
  PoolHost& operator=(const PoolHost&) = delete;
  ~PoolHost();

  /// Joins, with all leases that there are by now. The devices are known, and clients are heard at this address.
  void start(std::string address);
  /// Leaves; what it has put into the registry goes. `left` is called within seconds.
  void stop(std::function<void()> left);
  /// The host's next broker goes on with everything but what clients wait for. `withdrawn` is called within seconds.
  void leave_to_next(std::function<void()> withdrawn);
  /// The host is drained, or serves again, or stops.
  void changed();

  /// Of a host that is in touch with the pool's registry: empty. Else a sentence.
  std::string why_no_leases() const;
  /// This client says that a host does not answer it. Nothing is remembered of what is no host of the pool.
  void not_reached(const std::string& address, const std::string& host);
  /// Hosts that did not answer clients of this address lately.
  std::vector<std::string> doubted(const std::string& address) { return unreached_.of(address); }

  const std::string& name() const { return options_.pool; }
  pool::Member& member() { return member_; }
  const pool::Member& member() const { return member_; }

  /// The lease of a job that a client brings from another host of the pool, by the name of its placement. Empty if the
  /// job has a lease here from now on; else why not.
  asio::awaitable<std::string> find(std::string placement, std::string tenant, JobKey job);
  /// A client has come to a lease: it ends with its client from now on. One that the registry does not know of, because
  /// it was away, is told to it.
  void came(const std::shared_ptr<Lease>& lease);
  /// No client comes to it any more.
  void give_up(const std::shared_ptr<Lease>& lease);
  /// A client of this tenant has been sent to these hosts. Should it give that up, their leases end at once.
  void sent(const std::string& placement, const std::string& tenant, std::vector<std::string> hosts);
  void give_up(const std::string& placement, const std::string& tenant);

  /// The pool as people see it: as it is now, or, where that cannot be known, as it was last. Null: it was never seen.
  asio::awaitable<std::shared_ptr<const pool::PoolView>> view();
  /// As it was last seen; looks again meanwhile.
  std::shared_ptr<const pool::PoolView> last_view();
  /// Since it was seen last.
  std::chrono::seconds view_age() const;

 private:
  struct Entry {
    pool::LeaseRecord record;
    std::weak_ptr<Lease> lease;
    std::shared_ptr<Lease> kept;  ///< until its client comes
    std::chrono::steady_clock::time_point until;
  };
  class Mark;

  pool::HostRecord describe() const;
  pool::RoomRecord room() const;
  bool admit(const std::string& id, const pool::LeaseRecord& record);
  std::string why_not(const std::string& id, const pool::LeaseRecord& record);
  void enter(const std::string& id, const pool::LeaseRecord& record, const std::shared_ptr<Lease>& lease);
  void withdraw(const std::string& id);
  void gone(const std::string& id);
  Entry* entry_of(const Lease& lease);
  pool::LeaseRecord record_of(Lease& lease) const;
  void look();

  const pool::MemberOptions options_;
  Leases& leases_;
  const Facts facts_;
  std::string address_;
  std::map<std::string, Entry> entries_;         // by the registry's name of the lease
  std::map<std::string, std::string> refusals_;  // by the same, of those that could not be had last
  struct Sent {
    std::string tenant;
    std::vector<std::string> hosts;
    std::chrono::steady_clock::time_point until;
  };
  std::map<std::string, Sent> sent_;  // by the same
  std::shared_ptr<PoolHost*> self_;   // for what may live longer
  std::shared_ptr<void> watch_;       // of the books
  asio::io_context& io_;
  asio::steady_timer look_;
  pool::RoomRecord told_;
  std::chrono::steady_clock::time_point told_at_;
  std::shared_ptr<const pool::PoolView> view_;
  std::chrono::steady_clock::time_point view_at_, looked_at_;
  bool viewing_ = false;
  Unreached unreached_;
  pool::Member member_;
};

}  // namespace fargpu::server
