#pragma once
// How a worker's process is started: its arguments, its environment, and the descriptors that it has.

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "server/sm_groups.h"
#include "settings.h"

namespace fargpu::server {

using Environment = std::map<std::string, std::string>;

/// What a worker is started with, and what it can therefore serve.
struct WorkerProfile {
  Environment environment;        ///< variables that clients have an opinion on
  std::vector<unsigned> devices;  ///< places among the broker's devices; empty for all
  SmGroups sm_groups;             ///< as in a lease
  bool standard() const { return environment.empty() && devices.empty() && sm_groups.empty(); }
  bool operator==(const WorkerProfile&) const = default;
};

std::vector<std::string> worker_arguments(const Settings& settings, const WorkerProfile& profile, bool warm,
                                          bool has_door);

/// As posix_spawn: 0, or the error. The process has some of our variables besides `environment`, and `link` and, unless
/// it is negative, `door` under a worker's numbers for them, but no other descriptor of ours.
int spawn_worker(pid_t& process, std::vector<std::string> arguments, const Environment& environment, int link,
                 int door);

}  // namespace fargpu::server
