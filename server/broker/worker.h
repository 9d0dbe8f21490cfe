#pragma once
// A worker in the broker's eyes: its process and, once it has one, the session that it serves.

#include <asio.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client_facts.h"
#include "lease.h"
#include "supervised_process.h"

namespace fargpu::server {

struct Worker : SupervisedProcess {
  /// Called once when it becomes ready, or fails (with the reason).
  std::function<void(Worker*, const std::string& failure)> when_ready;

  // The session. Its lease is here from when the worker is promised until the process is gone: until then it holds what
  // it held.
  std::unique_ptr<LeaseSession> lease;
  std::uint64_t session = 0;
  ClientFacts client;
  std::chrono::system_clock::time_point started;
  std::uint64_t calls = 0;
  std::vector<std::uint64_t> driver_bytes;  ///< what the driver took besides, when it was last looked at
  std::vector<std::byte> lane_key;
  std::vector<std::vector<std::byte>> link_keys;  ///< of connections that other hosts' workers may make
  std::uint32_t dials = 0;                        ///< to other hosts, so far
  bool told_to_stop = false;
  std::uint64_t alive = 0;             ///< as its account said when it was last looked at
  unsigned still = 0;                  ///< looks at which it has said nothing new
  std::uint64_t resuming_since = 0;    ///< Unix time since when it waits for its client to come back; 0: it does not
  std::vector<std::uint64_t> busy_ns;  ///< for which each of its devices had work of it
  std::uint64_t waited_ns = 0;         ///< for which it had work and no turn
  std::uint64_t known_bytes = 0;       ///< of contents that the host had, and it did not send
  std::uint64_t kept_bytes = 0;        ///< of those that it sent and the host has kept
  std::uint64_t images_not_kept = 0;   ///< images that it sent and the folder has not taken
  bool by_rdma = false;                ///< it talks to its client by RDMA
  /// What the session holds of the broker's device at this place, wherever it is.
  std::uint64_t used_bytes(unsigned place) const;
  /// The part of that which is on the device.
  std::uint64_t there_bytes(unsigned place) const;
  /// What of its own memory is on its lease's device of this number.
  std::uint64_t own_bytes_there(std::size_t device) const;
  /// The number of the broker's device at this place among those of its lease.
  std::optional<std::size_t> number_of(unsigned place) const;
  AccountSlot& slot() const;

  /// Runs from the end of its session: it has nothing to do any more.
  std::unique_ptr<asio::steady_timer> end_deadline;
};

}  // namespace fargpu::server
