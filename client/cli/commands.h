#pragma once
// The verbs of the command line. Each returns the process's exit code.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "client/base/config.h"
#include "filter.h"

namespace fargpu::client::cli {

inline constexpr int exit_no_capacity = 75;  ///< EX_TEMPFAIL of sysexits.h: trying later may help
inline constexpr int exit_own_error = 125;   ///< these three as timeout(1) and env(1) use them
inline constexpr int exit_denied = 126;      ///< by the host, or the system does not execute the program
inline constexpr int exit_not_found = 127;

struct RunOptions {
  std::string pool;
  std::string gpus, hosts, memory, compute, priority,
      wait;  ///< as the variables of the same meaning; empty where none is given
  bool no_check = false;
  std::vector<std::string> arguments;
};
/// Replaces this process by the program, with the client library in its loader path. Returns only on failure.
int run(const RunOptions& options);

struct ListOptions {
  std::string pool;
  Filter filter;
  std::string output = "table";
};
int list(const ListOptions& options);

/// The users of the hosts' devices and what they use, again and again on a terminal; once elsewhere.
struct TopOptions {
  std::string pool;
  Filter filter;
  std::string output = "table";
  double seconds = 1;
  bool once = false;
};
int top(const TopOptions& options);

struct PolicyOptions {
  std::string host;
  std::string policy;  ///< empty: show it
};
int policy(const PolicyOptions& options);

struct QuotaOptions {
  std::string host;
  std::uint64_t session = 0;
  unsigned percent = 0, weight = 0;  ///< 0: as it is
  std::string output = "table";
};
/// Without a session: shows limits, use and queue of tenants.
int quota(const QuotaOptions& options);

/// Of all hosts of a pool with a registry together.
struct PoolTenantOptions {
  std::string host;  ///< any member
  std::string tenant;
  std::string memory, compute;  ///< empty: no limit
  std::optional<unsigned> leases;
  unsigned weight = 0;
  bool forget = false;
};
int set_pool_tenant(const PoolTenantOptions& options);

struct CacheOptions {
  std::string host;
  std::string tenant;  ///< empty: the client's own
  bool clear = false;
  std::string output = "table";
};
/// Shows what a host keeps of a tenant's contents of memory, or has it keep nothing any more.
int cache(const CacheOptions& options);

struct EndOptions {
  std::string host;
  std::uint64_t session = 0;
};
int end_session(const EndOptions& options);
int evict_session(const EndOptions& options);

struct DrainOptions {
  std::string host;
  std::string time;  ///< of `drain`; empty: until `resume`
};
int drain(const DrainOptions& options);
int resume(const DrainOptions& options);

/// The devices of all hosts of a pool, with what programs see of them through NVML, and the programs that have them.
struct SmiOptions {
  std::string pool;
  Filter filter;
  std::string output = "table";
};
int smi(const SmiOptions& options);

struct DoctorOptions {
  std::string pool;
  std::string output = "table";
};
int doctor(const DoctorOptions& options);

struct VariablesOptions {
  std::string output = "table";
};
int list_variables(const VariablesOptions& options);

struct TokenOptions {
  std::string file, name, tenant;
  std::string ttl = "90d";
};
int create_token(const TokenOptions& options);
int list_tokens(const TokenOptions& options);
int revoke_token(const TokenOptions& options);

struct PkiOptions {
  std::string folder;
  std::string life;  ///< empty: as long as is usual for such a certificate
  std::string server, tenant;
  std::vector<std::string> hosts;
  std::string name;  ///< of what is renewed
};
int init_pki(const PkiOptions& options);
int issue_pki(const PkiOptions& options);
int renew_pki(const PkiOptions& options);

/// The hosts of --pool or FARGPU_POOL; throws std::runtime_error with the repair.
std::vector<PoolHost> pool_hosts(const std::string& pool);

/// An amount of memory in a table: "1.5 GiB", and below one "512 MiB".
std::string memory_text(std::uint64_t bytes);
/// For how long something has been so since this Unix time: "90 s", "5 min", "3 h".
std::string age_text(std::uint64_t since);

}  // namespace fargpu::client::cli
