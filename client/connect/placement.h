#pragma once
// Where the registry of a pool has placed a lease: at other hosts than the one that was asked.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/base/config.h"
#include "control_connection.h"

namespace fargpu::client {

struct Placement {
  struct Part {
    PoolHost host;
    std::uint32_t gpus = 0;
    std::string name;      ///< in the pool; empty: the broker is too old to say
    std::string identity;  ///< that the host tells in its hello; empty likewise
  };
  std::string name;
  LeaseOptions::Job job;
  std::vector<Part> parts;
};

/// How often a pool is asked for one lease, if the hosts that it names do not have it after all.
inline constexpr int placements_max = 5;

/// The host at an address that a member of its pool has told; nothing, and why, if a client does not go there: a host
/// that is reached by TLS leads to no other one without, and none leads to a socket of the client's machine.
std::optional<PoolHost> told_host(const std::string& address, const ControlConnection& by, std::string& why);

/// Of an answer that this broker gave to a wish; nothing if it has no places. Throws DialError if they are none that a
/// client may go to, or not what was asked for.
std::optional<Placement> read_placement(wire::LeaseAnswer::Reader answer, const ControlConnection& broker,
                                        const LeaseOptions& wish);

/// Connects to a host at which the pool has placed a job. Throws DialError, also if another host answers there.
std::unique_ptr<ControlConnection> connect_to_part(const Placement::Part& part,
                                                   ControlConnection::For whom = ControlConnection::For::job);

/// Tells the member of the pool which has named this placement that no use is made of it. Does not throw: if the member
/// cannot be told, what is kept for the placement ends by itself.
void give_up(const PoolHost& member, const std::string& placement) noexcept;

/// What mends that a host of a pool is not reached at its address.
std::string unreached_repair(const DialError& error);

/// The failure of a host at which the pool has placed a job: the client has named another host perhaps, and is told of
/// both. By the host's name in the pool, if it is known, the pool can be asked for others.
DialError placed_there(const PoolHost& host, const DialError& error, const std::string& name = "");

/// The pool's refusal after hosts that it had named did not answer: if no other host could ever serve the job, they are
/// why there is no lease.
DialError no_other_host(const std::optional<DialError>& before, const DialError& refusal);

/// The last failure of a search in which a host had failed at which the pool had placed the job: its lease there may be
/// what is missing now.
DialError told_with(const std::optional<DialError>& before, const DialError& error);

/// The refusal of a member of a pool. One that serves without the registry (`pool_outage = local`) can give no more
/// than it has, which other hosts may have: this is told then, and that trying later may help.
DialError told_of_outage(const PoolHost& member, const LeaseOptions& wish, const DialError& error);

/// Whether the pool may place it elsewhere after this failure of a host that it had named. Waits for the pool to hear
/// of a host's end, unless it can be told to pass over the host.
bool place_again(const DialError& error, int placements);

}  // namespace fargpu::client
