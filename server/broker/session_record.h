#pragma once
// What a broker leaves with a session's worker for the host's next broker (SessionRecord in worker_link.capnp).

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client_facts.h"
#include "lease.h"
#include "worker_link.capnp.h"

namespace fargpu::server {

struct SessionFacts {
  pid_t process;  ///< the worker's
  std::uint64_t session;
  std::chrono::system_clock::time_point started;
  std::span<const std::byte> lane_key;
  const ClientFacts& client;
  const LeaseSession& lease;
};
/// `uuids`: of the host's devices. Throws SystemError.
void write_record(const SessionFacts& facts, const std::vector<std::string>& uuids,
                  wire::SessionRecord::Builder record);

/// The record's lease as one of this host's devices, without an account. Nothing if a device of it is not among those,
/// or they are in another order.
std::optional<Lease> read_lease(wire::SessionRecord::Reader record, const std::vector<std::string>& uuids);
ClientFacts read_client(wire::ClientRecord::Reader record);

/// Of an account's memory, as long as the host does not start again. Throws SystemError.
std::uint64_t account_number(int descriptor);

}  // namespace fargpu::server
