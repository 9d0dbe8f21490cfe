#pragma once
// Which request of a pool is served next, and by which hosts. Decides and does nothing else: what the registry says
// goes in, decisions come out, and the time is told.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "records.h"

namespace fargpu::server::pool {

/// Requests are served in a fair order: each tenant's in theirs, and tenants by turns in the proportion of their
/// weights. One that lacks room claims what becomes free of the hosts that suit it, and those behind it have what is
/// left. A lease has devices of one host if some host has them all, and else of as few as it may be spread over.
class Placement {
 public:
  using Clock = std::chrono::steady_clock;
  /// For which a request may wait that no host could ever serve: hosts may be about to come back.
  static constexpr std::chrono::seconds hopeless_max{15};
  /// Requests that claim room.
  static constexpr std::size_t claims_max = 64;
  /// After which hosts to claim are looked for again, where those that are claimed do not suffice any more.
  static constexpr std::chrono::seconds claim_again{1};
  /// Different wishes of one tenant that are looked at in a round.
  static constexpr std::size_t wishes_max = 128;
  static constexpr std::size_t obstacles_max = 10'000;

  // What the registry says, in the order of its revisions.
  void set_host(const std::string& name, HostRecord record, std::int64_t lifetime);
  void set_room(const std::string& name, RoomRecord room);
  void erase_host(const std::string& name);
  void erase_room(const std::string& name);
  /// What is remembered of a host, also while it is away.
  void set_known(const std::string& name, HostRecord record);
  void erase_known(const std::string& name);
  void set_lease(const std::string& host, const std::string& id, LeaseRecord lease, std::int64_t created);
  void erase_lease(const std::string& host, const std::string& id);
  void set_tenant(const std::string& name, TenantRecord record);
  void erase_tenant(const std::string& name);
  void set_request(const std::string& id, RequestRecord record, std::int64_t created, Clock::time_point now);
  void erase_request(const std::string& id);
  /// Nothing can be placed at this host as its record is: its lifetime has ended.
  void doubt(const std::string& host) { change(host).doubted = true; }

  struct Decision {
    std::string id;
    RequestRecord request;
    std::int64_t created = 0;  ///< of the request
    AnswerRecord answer;
    LeaseRecord lease;   ///< of each part, but for its number of devices
    std::string reason;  ///< for people
  };
  /// The next decisions, which exclude each other's room. They count once they are told here as the registry's.
  std::vector<Decision> decide(std::size_t most, Clock::time_point now);
  /// Whether something has come since that could make for other decisions than none. Time alone can, too.
  bool worth_deciding() const { return fresh_; }

  std::size_t waiting() const { return requests_.size(); }
  std::size_t hosts() const { return there_; }
  std::size_t leases() const { return leases_; }
  std::int64_t lifetime_of(const std::string& host) const;

 private:
  struct Use {
    std::uint64_t memory_bytes = 0;
    std::uint64_t compute_percent = 0;
    std::uint64_t leases = 0;
  };
  struct PlacedLease {
    LeaseRecord record;
    std::int64_t created = 0;
  };
  struct Device {
    std::uint64_t bytes = 0;
    std::uint32_t percent = 0;
  };
  /// What a host can still give.
  struct Spare {
    std::vector<Device> devices;
    std::uint64_t sessions = 0;
    std::uint64_t load = 0;
    std::uint64_t most_bytes = 0;  ///< of one device
    std::uint32_t most_percent = 0;
    void note_most();
  };
  struct Host {
    HostRecord record;
    std::optional<RoomRecord> room;
    std::int64_t lifetime = 0;
    bool there = false;  ///< it has a record
    bool doubted = false;
    bool known = false;  ///< it was there lately: `record` is the last one then
    std::map<std::string, PlacedLease> leases;
    std::map<std::string, Use> uses;  ///< by tenant
    Spare spare;                      ///< of the present decisions
    std::uint64_t rank = 0;           ///< in `by_load_`
  };
  struct Waiting {
    RequestRecord record;
    std::int64_t created = 0;
    std::uint64_t tag = 0;
    Clock::time_point since;
    std::vector<std::string> claimed;         ///< hosts; chosen once, so that what is in the way there comes to an end
    std::optional<Clock::time_point> chosen;  ///< when they were looked for last
  };
  enum class Shortage { nothing, quota, room, never };
  struct Verdict {
    Shortage shortage = Shortage::nothing;
    std::string text;
    std::vector<std::pair<Host*, unsigned>> parts;
    std::vector<std::string> names;
  };

  /// What of a request tells where it finds room, if it finds any.
  using Shape = std::tuple<std::string, std::string, std::vector<std::string>, std::vector<std::string>, std::uint32_t,
                           std::uint32_t, std::uint64_t, std::uint32_t>;
  static Shape shape_of(const RequestRecord& wish);

  static Use use_of(const LeaseRecord& lease);
  static void add(Use& use, const Use& more);
  static void subtract(Use& use, const Use& less);
  static bool exceeds(const Limits& limits, const Use& use);
  void forget_if_empty(const std::string& host);
  Host& change(const std::string& name);
  void rank(const std::string& name, Host& host);
  void prepare();
  void take(const std::string& name, Host& host, unsigned devices, const LeaseRecord& lease);
  static void take(Spare& spare, const std::vector<unsigned>& allowed, unsigned devices, const LeaseRecord& lease);
  static std::vector<unsigned> allowed(const Host& host, const std::string& tenant);
  static bool serves(const Host& host, const std::string& tenant);
  /// What counts as taken of a host.
  enum class Taken {
    all,        ///< what everybody has there now
    of_tenant,  ///< what the tenant has there now, as if what others have had ended
    nothing,    ///< as if nobody used the host, and it served
    absence,    ///< not even that: as if a host that was there lately were back
  };
  /// How many devices a host can give to a request.
  unsigned can_give(const Host& host, const RequestRecord& wish, Taken taken) const;
  /// Of which devices without its own limits of the tenant, and of these by those limits.
  struct Fit {
    unsigned devices = 0, within_limits = 0;
  };
  Fit fit(const Host& host, const RequestRecord& wish, Taken taken) const;
  /// The limit of a host that is in the way of a request, if one is; for people.
  std::string limit_in_the_way(const RequestRecord& wish, Taken taken) const;
  /// Hosts that could serve a request and take no new sessions now, if there are any; for people.
  std::string drained_in_the_way(const RequestRecord& wish) const;
  bool suits(const std::string& name, const RequestRecord& wish) const;
  /// Hosts that are chosen after all others.
  static bool comes_last(const std::string& name, const RequestRecord& wish);
  /// Why a request cannot be served now, beyond what others have.
  struct Obstacle {
    std::string never;  ///< no host could ever serve it
    std::string away;   ///< hosts could that were there lately
  };
  const Obstacle& obstacle(const RequestRecord& wish);
  static Verdict too_many_wishes(const RequestRecord& wish);
  Verdict judge(const RequestRecord& wish, const std::map<std::string, Use>& uses);
  bool choose(const RequestRecord& wish, Taken taken, Verdict& verdict);
  void claim(Waiting& waiting, Clock::time_point now);
  void choose_claims(Waiting& waiting);

  std::map<std::string, Host> hosts_;
  std::map<std::pair<std::uint64_t, std::string>, Host*> by_load_;  // those with least first
  std::set<std::string> changed_;                                   // hosts whose `spare` is not what the registry says
  std::map<std::string, TenantRecord> tenants_;
  std::map<std::string, Use> uses_;  // by tenant, of the whole pool
  std::map<std::string, Waiting> requests_;
  std::set<std::pair<std::pair<std::uint64_t, std::int64_t>, std::string>> order_;  // tag, revision, id
  std::map<std::string, std::uint64_t> last_tag_;                                   // by tenant
  std::map<Shape, Obstacle> obstacles_;  // of what was asked for since hosts changed
  bool fresh_ = true;
  std::uint64_t virtual_time_ = 0;
  std::size_t leases_ = 0, there_ = 0;
};

}  // namespace fargpu::server::pool
