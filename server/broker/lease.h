#pragma once
// Leases: rights to shares of devices, and which jobs may have one now.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "control.capnp.h"
#include "server/quota/tenant_account.h"
#include "server/sm_groups.h"
#include "tenants.h"

namespace fargpu::server {

/// What a client asks a lease to be.
struct LeaseWish {
  unsigned gpus = 0;                       ///< 0: all that the tenant may use
  std::uint64_t memory_bytes = 0;          ///< of each device; 0: none is kept, and the tenant's quota is the limit
  std::uint32_t compute_percent = 0;       ///< of each device; 0: no limit and no guarantee
  std::optional<wire::Priority> priority;  ///< none: the tenant's highest, at most normal
};

/// The job whose processes share a lease; made up by the starter of the job, and meaningless outside of its tenant.
using JobKey = std::array<std::byte, 16>;

/// A right to a share of some devices, for all sessions of one job. Lasts while somebody points to it: its sessions,
/// what was promised to them, connections that hold it.
struct Lease {
  std::uint64_t id = 0;
  std::string tenant;
  std::uint32_t weight = 0;  ///< the tenant's
  /// Places among the broker's devices, ascending: the order in which every session sees them.
  std::vector<unsigned> devices;
  std::uint64_t memory_bytes = 0;     ///< of each device; 0: none is kept
  std::uint32_t compute_percent = 0;  ///< of each device; 0: no limit
  wire::Priority priority = wire::Priority::NORMAL;
  std::optional<JobKey> job;
  std::size_t sessions = 0;  ///< that run, and that were promised
  std::size_t holders = 0;   ///< connections that hold it: `fargpu run`, while its program runs
  /// When the last of these went; its sessions end as soon as they hear of it.
  std::optional<std::chrono::steady_clock::time_point> left;
  std::optional<std::uint64_t> kernel_seconds_max;  ///< the tenant's; none: the host's
  std::optional<std::uint64_t> resume_seconds;      ///< the tenant's; none: the host's
  std::string mps;                                  ///< the tenant's
  SmGroups sm_groups;  ///< of each device: on these multiprocessors its kernels are, and those of no other lease that
                       ///< goes by the same `mps`; empty: on any
  bool among_tenants = false;              ///< the host has others
  bool passing = false;                    ///< goes before anybody could have missed what it has
  std::shared_ptr<TenantAccount> account;  ///< the tenant's
  std::shared_ptr<void> in_pool;           ///< its record in the pool's registry, which goes with it; null: it has none
};

/// One session's part in a lease, from when it is promised. Its end frees the session's place.
class LeaseSession {
 public:
  LeaseSession(std::shared_ptr<Lease> lease, std::size_t slot, std::function<void()> ended)
      : lease_(std::move(lease)), slot_(slot), ended_(std::move(ended)) {
    ++lease_->sessions;
  }
  LeaseSession(const LeaseSession&) = delete;
  LeaseSession& operator=(const LeaseSession&) = delete;
  ~LeaseSession();
  const Lease& lease() const { return *lease_; }
  std::shared_ptr<const Lease> shared() const { return lease_; }
  /// Where its worker counts what it holds, in the lease's account.
  std::size_t slot() const { return slot_; }

 private:
  std::shared_ptr<Lease> lease_;
  const std::size_t slot_;
  const std::function<void()> ended_;
};

/// What there is too little of for a lease. A waiting client has it before those that come later.
enum class Shortage { nothing, devices, quota, tenant_sessions, host_sessions };

/// Why there is no lease.
struct LeaseRefusal {
  bool may_change = false;  ///< it is a matter of what others hold now
  std::string text;
  Shortage shortage = Shortage::nothing;
};
/// What a refusal says where all of `whose` sessions are taken, which are so many.
std::string all_sessions_taken(std::uint64_t sessions, std::string_view whose);

/// A client that waits for a lease.
struct Waiter {
  std::string tenant;
  LeaseWish wish;
  Shortage shortage = Shortage::nothing;  ///< of what, when it last asked
  /// That are kept for it; chosen once, so that what is in its way there comes to an end.
  std::vector<unsigned> devices;

  // For people.
  std::chrono::system_clock::time_point since = std::chrono::system_clock::now();
  std::string program, host_name;
  std::uint32_t process_id = 0;
  std::optional<JobKey> job;
  std::string reason;
};

/// What a tenant's leases take of its limits.
struct TenantUse {
  std::uint64_t memory_bytes = 0;  ///< kept for leases, or used by them
  std::uint64_t compute = 0;       ///< in hundredths of a percent
  std::uint64_t host_bytes = 0;    ///< of the host's memory, by the lease that holds most of it
  std::size_t sessions = 0;
  std::size_t leases = 0;
};

/// Grants leases against what the devices have and what tenants may. Everything runs on the broker's one thread.
class Leases {
 public:
  /// `account_slots`: sessions that a tenant can have at once.
  explicit Leases(std::size_t account_slots) : account_slots_(account_slots) {}

  /// The host's devices, their memory, and into how many groups of multiprocessors each can be divided. Until they are
  /// known nothing is granted. `oversubscription`: how many times a device's memory leases may have of it together.
  void set_devices(std::vector<std::uint64_t> memory_bytes, std::vector<unsigned> sm_groups = {},
                   double oversubscription = 1) {
    capacity_ = std::move(memory_bytes);
    oversubscription_ = oversubscription;
    sm_groups_ = std::move(sm_groups);
    sm_groups_.resize(capacity_.size());
  }
  bool knows_devices() const { return !capacity_.empty(); }
  /// Tenants may change at any time. What was granted stays.
  void set_tenants(Tenants tenants);
  const Tenants& tenants() const { return tenants_; }

  /// A place in the queue, while the result lives. What becomes free is kept for the earlier places that lack it. A job
  /// that can do with the rest need not wait. First comes each tenant's first, then each one's second, and so on.
  std::shared_ptr<Waiter> wait(const Tenant& tenant, const LeaseWish& wish);
  /// All that wait, in the order in which they came.
  const std::list<Waiter*>& waiting() const { return queue_; }
  TenantUse use_of(const std::string& tenant) const;
  /// Has all that wait look again.
  void wake() { tell(); }
  /// How many before a place (or before somebody without one) lack this.
  std::size_t before(const Waiter* place, const std::string& tenant, Shortage shortage) const;

  using Answer = std::variant<std::shared_ptr<Lease>, LeaseRefusal>;
  /// The lease of a job if it has one, or a new one. `place`: in the queue, for a job that has waited.
  Answer grant(const Tenant& tenant, const LeaseWish& wish, const std::optional<JobKey>& job,
               const Waiter* place = nullptr);
  /// The lease of a job; null if it has none.
  std::shared_ptr<Lease> find(const std::string& tenant, const JobKey& job) const;
  /// Why a tenant can have no more sessions now; nothing if it can.
  std::optional<LeaseRefusal> sessions_taken(const Tenant& tenant, const Waiter* place = nullptr) const;
  /// Another session of a lease.
  std::variant<std::unique_ptr<LeaseSession>, LeaseRefusal> begin_session(const std::shared_ptr<Lease>& lease,
                                                                          const Waiter* place = nullptr);

  /// A session of an earlier broker: its lease with the number that it had, which other sessions may have been taken
  /// over with, and its slot. `lease` is without what tenants say now. Null, with why, if what is there is another
  /// lease, or does not belong to this account.
  std::unique_ptr<LeaseSession> take_over(Lease lease, std::shared_ptr<TenantAccount> account, std::size_t slot,
                                          std::string& why_not);
  /// No more will be taken over. `all`: what other sessions had is gone with them; otherwise some go on that are left
  /// alone, so that it stays theirs.
  void all_taken_over(bool all);

  /// All of them, in the order in which they were granted.
  std::vector<std::shared_ptr<Lease>> all() const;
  std::size_t devices() const { return capacity_.size(); }
  /// The largest amount of a device's memory that a lease can ask for.
  std::uint64_t capacity(unsigned device) const { return capacity_.at(device); }
  /// Memory of a device that nobody holds and that is kept for nobody.
  std::uint64_t free_bytes(unsigned device) const;
  /// The share of a device that is kept for nobody.
  std::uint32_t free_percent(unsigned device) const;

  /// Calls `changed` whenever a lease or a session of one ends, or tenants change, while the result lives.
  std::shared_ptr<void> watch(std::function<void()> changed);

 private:
  /// What a share of a device is of the tenant's `compute`, in hundredths of a percent: its percentage, or its groups
  /// if those are more.
  std::uint64_t compute_of(std::uint32_t percent, std::size_t groups, unsigned device) const;
  /// Of each device, what is free and kept for nobody before a place.
  struct Spare {
    std::vector<std::uint64_t> bytes;
    std::vector<std::uint32_t> percent;
    std::vector<unsigned> sm_groups;  ///< none for a tenant whose leases have none
    bool fits(unsigned device, const LeaseWish& wish, unsigned wanted_groups) const {
      return bytes[device] >= wish.memory_bytes && percent[device] >= wish.compute_percent &&
             sm_groups[device] >= wanted_groups;
    }
  };
  /// One that waits, and its number among those of its tenant.
  struct Turn {
    std::size_t number;
    Waiter* waiter;
  };
  Spare spare(const Tenant& tenant, std::span<const Turn> before) const;
  /// How many of a device's groups a lease is to have.
  unsigned wanted_groups(const Tenant& tenant, const LeaseWish& wish, unsigned device) const;
  /// The groups of a device that no lease of the tenant has.
  std::vector<unsigned> free_groups(const Tenant& tenant, unsigned device) const;
  const std::vector<Turn>& order() const;
  std::span<const Turn> those_before(const Waiter* place, const std::string& tenant) const;
  std::vector<unsigned> allowed(const Tenant& tenant) const;
  std::uint64_t held(const Lease& lease, std::size_t device) const;
  std::shared_ptr<TenantAccount> account_of(const std::string& tenant);
  /// What leases of the tenant without memory of their own may hold, after a change.
  void divide(const std::string& tenant);
  std::shared_ptr<Lease> make(const Tenant& tenant, const LeaseWish& wish, std::vector<unsigned> devices,
                              const std::optional<JobKey>& job);
  /// Puts it into the books.
  std::shared_ptr<Lease> enter(Lease facts);
  void tell();

  const std::size_t account_slots_;
  std::vector<std::uint64_t> capacity_;
  double oversubscription_ = 1;
  std::vector<unsigned> sm_groups_;  // of each device
  Tenants tenants_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, std::weak_ptr<Lease>> leases_;
  std::map<std::string, std::weak_ptr<TenantAccount>> accounts_;
  std::list<std::function<void()>> watchers_;
  std::list<Waiter*> queue_;         // in the order in which they came
  mutable std::vector<Turn> order_;  // in that in which they are served; empty if it is not known
};

}  // namespace fargpu::server
