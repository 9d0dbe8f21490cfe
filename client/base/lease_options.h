#pragma once
// What to ask a GPU host for, as the environment says it.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control.capnp.h"

namespace fargpu::client {

struct LeaseOptions {
  std::uint32_t gpus = 0;                  ///< FARGPU_GPUS; 0 for all there are
  std::uint32_t hosts = 1;                 ///< FARGPU_HOSTS: that they may be of
  std::vector<std::uint32_t> split;        ///< FARGPU_SPLIT, set by `fargpu run`: how many at each host of the pool
  std::uint64_t memory_bytes = 0;          ///< FARGPU_MEM, of each; 0 for whatever is there
  std::uint32_t compute_percent = 0;       ///< FARGPU_COMPUTE, of each; 0 for no limit
  std::optional<wire::Priority> priority;  ///< FARGPU_PRIORITY; none: the tenant's highest, at most normal
  std::chrono::milliseconds wait{0};       ///< FARGPU_WAIT: for how long, while there is not enough
  using Job = std::array<std::byte, 16>;
  bool follows = false;                ///< an answer that names other hosts of a pool is understood
  std::string placement;               ///< as such an answer named it, for those hosts
  std::vector<std::string> unreached;  ///< hosts of the pool that did not answer this process
  std::optional<Job> job;              ///< FARGPU_JOB, set by `fargpu run`: all processes of it share one lease
};

/// An amount of memory with its unit: what is less than 1 MiB is none.
std::optional<std::uint64_t> parse_memory(const std::string& text);
inline constexpr const char* memory_wanted = "give an amount of memory with its unit, at least 1MiB, for example 8GiB";

/// Reads the variables; `error` says which is wrong and what it may be, if one is.
LeaseOptions read_lease_options(std::string& error);

/// As the broker is asked for it.
void write_lease_options(const LeaseOptions& options, wire::LeaseRequest::Builder request);

}  // namespace fargpu::client
