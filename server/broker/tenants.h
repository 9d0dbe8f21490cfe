#pragma once
// Tenants: the users of this host, and how much of it each may use. From the tables [tenant.NAME] of the settings file.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control.capnp.h"

namespace fargpu::server {

struct Tenant {
  std::string name;
  std::uint64_t memory_bytes = 0;     ///< on all devices together; 0 for no limit
  std::uint32_t compute_percent = 0;  ///< of all devices together, 100 for each; 0 for no limit
  std::uint32_t weight = 100;         ///< against other tenants, where devices are shared
  std::uint64_t sessions_max = 0;     ///< 0 for no limit
  /// Of the host's memory, that the sessions of one lease may take together; 0 for no limit.
  std::uint64_t host_bytes = 0;
  /// Bytes a second over the network, of the sessions of one lease together; 0 for no limit.
  std::uint64_t bandwidth = 0;
  /// For which a GPU may complete nothing; 0 for no limit, none: as the host says.
  std::optional<std::uint64_t> kernel_seconds_max;
  std::optional<std::uint64_t> resume_seconds;
  std::string mps;  ///< folder of the pipes of an MPS daemon, by which its programs share devices; empty for none
  bool sm_partitions = false;  ///< whether each of its leases has multiprocessors of its own, as many as its percentage
                               ///< says; `mps` then too
  bool administrator = false;  ///< sees everybody's sessions, and may change how devices are shared
  std::vector<unsigned> devices;  ///< that it may use, by their places among those of the broker; empty for all
  wire::Priority priority = wire::Priority::NORMAL;  ///< the highest that it may ask for
  std::vector<std::string> certificates;             ///< common names of client certificates, besides its own name
  std::vector<std::uint32_t> users;                  ///< of this machine, by number, for the Unix socket
};

/// Order of priorities: higher is more.
int rank(wire::Priority priority);
const char* text_of(wire::Priority priority);
std::optional<wire::Priority> parse_priority(const std::string& text);

/// All of them. Without any in the file there is one, "default", without limits.
class Tenants {
 public:
  Tenants();
  /// Reads them from a settings file; an empty path stands for none. Throws SettingsError, naming what is wrong.
  static Tenants read(const std::string& file);

  /// Whether the file names any: then no other client is served.
  bool configured() const { return configured_; }
  const std::map<std::string, Tenant>& all() const { return tenants_; }
  const Tenant* find(const std::string& name) const;
  const Tenant* of_certificate(const std::string& common_name) const;
  const Tenant* of_user(std::uint32_t user) const;

 private:
  std::map<std::string, Tenant> tenants_;
  bool configured_ = false;
};

}  // namespace fargpu::server
