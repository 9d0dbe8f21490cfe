#pragma once
// What stands in a pool's registry, as JSON, and under which keys (docs/internals/registry.md). Whatever is read there
// was written by some member, perhaps of another release, perhaps a bad one: every record is checked and bounded.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fargpu::server::pool {

inline constexpr std::size_t record_bytes_max = 64 << 10;
inline constexpr std::size_t devices_max = 64;    ///< of a host
inline constexpr std::size_t tenants_max = 1000;  ///< that a host names
inline constexpr std::size_t parts_max = 8;       ///< hosts of one lease
inline constexpr std::size_t name_bytes_max = 64;
inline constexpr std::size_t avoid_max = 64;  ///< hosts that a request is not to be placed at

/// Keys of a pool. Names of hosts, tenants and requests have no slash.
class Keys {
 public:
  explicit Keys(const std::string& pool) : root_("fargpu/v1/" + pool + "/") {}
  const std::string& root() const { return root_; }
  std::string placer() const { return root_ + "placer"; }
  std::string hosts() const { return root_ + "hosts/"; }
  std::string host(const std::string& host) const { return hosts() + host; }
  std::string rooms() const { return root_ + "rooms/"; }
  std::string room(const std::string& host) const { return rooms() + host; }
  /// What is remembered of hosts, for some time after they are gone.
  std::string known_hosts() const { return root_ + "known/"; }
  std::string known(const std::string& host) const { return known_hosts() + host; }
  std::string requests() const { return root_ + "requests/"; }
  std::string request(const std::string& id) const { return requests() + id; }
  std::string tenants() const { return root_ + "tenants/"; }
  std::string tenant(const std::string& name) const { return tenants() + name; }
  /// What concerns one host: leases that are placed at it, answers to its requests.
  std::string everybody() const { return root_ + "at/"; }
  std::string at(const std::string& host) const { return everybody() + host + "/"; }
  std::string lease(const std::string& host, const std::string& id) const { return at(host) + "lease/" + id; }
  std::string answer(const std::string& host, const std::string& id) const { return at(host) + "answer/" + id; }

 private:
  std::string root_;
};

/// Whether a text can stand in a key.
bool is_name(std::string_view text);

/// Limits of a tenant, at one host or of the whole pool. 0: none.
struct Limits {
  std::uint64_t memory_bytes = 0;     ///< on all devices together
  std::uint32_t compute_percent = 0;  ///< of all devices together
  std::uint32_t leases = 0;
  bool operator==(const Limits&) const = default;
};

inline constexpr std::uint32_t weight_max = 10'000;

/// Of the whole pool.
struct TenantRecord {
  Limits limits;
  std::uint32_t weight = 100;  ///< in the queue: 1 to weight_max
  bool operator==(const TenantRecord&) const = default;
};

/// A host, as it is while nobody uses it. Bound to its lifetime.
struct HostRecord {
  struct Device {
    std::string uuid, model;
    std::uint64_t bytes = 0;  ///< that leases may have
    bool operator==(const Device&) const = default;
  };
  struct Tenant {
    Limits limits;
    std::vector<unsigned> devices;  ///< that it may use, by place; empty: all
    bool operator==(const Tenant&) const = default;
  };
  std::string identity;
  std::string address;  ///< as in FARGPU_POOL
  std::string version;
  std::vector<Device> devices;
  std::uint32_t sessions_max = 0;
  bool names_tenants = false;  ///< others are not served there
  std::map<std::string, Tenant> tenants;
  bool operator==(const HostRecord&) const = default;
};

/// What a host has left now. Bound to its lifetime.
struct RoomRecord {
  enum class State { serving, draining, stopping };
  struct Device {
    std::uint64_t bytes = 0;
    std::uint32_t percent = 0;
    bool idle = false;  ///< no lease has anything on it
    bool operator==(const Device&) const = default;
  };
  State state = State::serving;
  std::vector<Device> devices;
  std::uint32_t sessions = 0;  ///< that it can still begin
  std::uint32_t load = 0;      ///< sessions that run or are promised
  std::int64_t seen = 0;       ///< leases that were placed by this revision are counted in all this
  bool operator==(const RoomRecord&) const = default;
};

/// What a client asks for. Bound to the lifetime of the host that it asks.
struct RequestRecord {
  std::string front;  ///< the host that was asked
  std::string tenant;
  std::string job;          ///< 32 hexadecimal digits
  std::uint32_t gpus = 0;   ///< 0: all that the tenant may use of a host
  std::uint32_t hosts = 1;  ///< over which they may be spread
  std::uint64_t memory_bytes = 0;
  std::uint32_t compute_percent = 0;
  std::string priority;                ///< empty: the tenant's
  bool waits = false;                  ///< not: be refused at once
  bool only_front = false;             ///< at the host that was asked, or nowhere
  bool prefers_front = false;          ///< there if it has room
  std::vector<std::string> avoid;      ///< hosts that had no room although they seemed to
  std::vector<std::string> unreached;  ///< hosts that do not answer this client
  std::vector<std::string> doubted;    ///< hosts that did not answer clients of the same address lately
  std::string program, client;         ///< for people: its file name, host name and process id
  std::uint64_t since = 0;             ///< for people: Unix time
  bool operator==(const RequestRecord&) const = default;
};

/// A lease, or a part of one, at a host. Bound to that host's lifetime.
struct LeaseRecord {
  std::string tenant, job;
  std::uint32_t gpus = 0;
  std::uint64_t memory_bytes = 0;  ///< of each
  std::uint32_t compute_percent = 0;
  std::string priority;
  std::int64_t fence = 0;  ///< revision by which its placer was elected; 0: the host gave it without the registry
  std::string program, client;
  bool operator==(const LeaseRecord&) const = default;
};

struct Part {
  std::string host, address;
  std::string identity;  ///< of the host; empty: the placer is older than this
  std::uint32_t gpus = 0;
  bool operator==(const Part&) const = default;
};

/// Bound to the lifetime of the host that was asked.
struct AnswerRecord {
  std::vector<Part> parts;  ///< empty: refused
  bool may_change = false;
  std::string text;
  bool operator==(const AnswerRecord&) const = default;
};

/// As JSON. Nothing for what is none.
template <class Record>
std::string write(const Record& record);
template <class Record>
std::optional<Record> read(const std::string& text);

/// What the placer has done since it was elected.
struct PlacerCounts {
  std::uint64_t granted = 0, refused = 0, rounds = 0;
  std::uint64_t waiting = 0, hosts = 0, leases = 0;
};

/// Everything, for people.
struct PoolView {
  struct Host {
    HostRecord record;
    RoomRecord room;
    std::uint32_t leases = 0;
  };
  std::map<std::string, Host> hosts;
  std::map<std::string, HostRecord> away;  ///< hosts that were there lately
  std::map<std::string, TenantRecord> tenants;
  std::map<std::string, Limits> uses;  ///< by tenant
  std::vector<RequestRecord> waiting;  ///< in the order in which they came
  std::string placer;
};

}  // namespace fargpu::server::pool
