#pragma once
// What a host of a pool can be expected to give a job now.

#include <cstdint>
#include <string>

#include "control.capnp.h"
#include "control_connection.h"

namespace fargpu::client {

/// As far as the host's status tells. Whether there is a lease, its answer to the request decides.
struct Offer {
  bool room = false;  ///< a lease of that size could be given now
  std::uint32_t devices = 0;
  std::uint32_t large_enough = 0;  ///< devices that would have that memory if nobody else had anything
  std::uint32_t free = 0;  ///< devices that have the memory that is asked for; 0 where no lease could be given at all
  std::string id;          ///< of the host, by its first device: the same for all clients
  std::uint32_t load = 0;  ///< sessions that run or are promised, and requests that wait
};

Offer read_offer(wire::Status::Reader status, const LeaseOptions& wish);
/// For a lease of the configuration's. Throws DialError.
Offer ask_for_offer(ControlConnection& broker);

/// Whether the first is to be asked before the other one: a host with room before one without, then the one with
/// fewer sessions and requests for each device. Of equal ones none is.
bool better(const Offer& offer, const Offer& other);

}  // namespace fargpu::client
