#pragma once
// What a worker says of the host's devices, as the broker keeps and tells it.

#include <cstdint>
#include <vector>

#include "control.capnp.h"

namespace fargpu::server {

/// Reads all that the broker may be asked for, so that whatever cannot be read is refused where it is said, and not met
/// again in the middle of an answer to a client: throws kj::Exception or ProtocolError then.
void copy_facts(wire::HostFacts::Reader from, wire::HostFacts::Builder to);

/// Of some of the devices alone, in this order, of which each has so much memory at most; 0 for all that it has.
void copy_facts(wire::HostFacts::Reader from, const std::vector<unsigned>& devices, std::uint64_t memory_bytes,
                wire::HostFacts::Builder to);

/// Whether these are the same devices in the same order.
bool same_devices(wire::HostFacts::Reader a, wire::HostFacts::Reader b);

}  // namespace fargpu::server
