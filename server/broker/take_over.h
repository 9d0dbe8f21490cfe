#pragma once
// How a broker begins: with the sessions of the one before it.

#include "lease.h"
#include "succession.h"
#include "workers.h"

namespace fargpu::server {

/// Enters all of them that are there into the books, before anybody else can have what is theirs. Leases must know the
/// host's devices. What cannot be taken over is left alone, with a line in the log. Returns the highest number of a
/// session; 0 without any.
std::uint64_t take_over_sessions(const Succession& succession, Leases& leases, Workers& workers);

}  // namespace fargpu::server
