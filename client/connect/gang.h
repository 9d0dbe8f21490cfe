#pragma once
// Devices of several hosts for one job: all of them, or none.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "control_connection.h"
#include "facts.h"

namespace fargpu::client {

struct GangMember {
  PoolHost host;
  std::uint32_t gpus = 0;                     ///< of its lease
  std::unique_ptr<ControlConnection> broker;  ///< holds that
  Facts facts;                                ///< of its devices
};

/// Takes leases at as few hosts as have the devices together that `wish` asks for, at most at `wish.hosts`; if it asks
/// for none in particular, all devices of as many hosts. `wish.job` names the job. One member if a host alone has them
/// all. In the order of the pool. `check` as PoolSearch's. Throws DialError, after `wish.wait` at the latest.
///
/// Leases are asked for in the order of the hosts' ids, which is the same for all clients, and while some are held the
/// next one is waited for briefly: jobs that want each other's devices do not wait for each other.
///
/// One member of a pool with a registry is asked, and the registry chooses. The job may get another name by that.
std::vector<GangMember> take_gang(const std::vector<PoolHost>& hosts, LeaseOptions& wish,
                                  const std::function<void(ControlConnection&)>& check);

/// For a job that has its leases: `wish.split` says how many devices at each host. Hosts that do not answer are left
/// out, each with a warning. Throws DialError if none does.
std::vector<GangMember> join_gang(const std::vector<PoolHost>& hosts, const LeaseOptions& wish,
                                  const std::function<void(ControlConnection&)>& check);

}  // namespace fargpu::client
