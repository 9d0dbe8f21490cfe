#pragma once
// What a host says of the pool that it is a member of, by the pool's registry: for `fargpu ls`, `top` and `quota`.

#include <nlohmann/json.hpp>
#include <string>

#include "control.capnp.h"
#include "filter.h"

namespace fargpu::client::cli {

/// Null where the host is of no such pool.
nlohmann::ordered_json describe_pool(wire::Status::Reader status, const Filter& filter);

/// A line of sums.
std::string pool_sums(const nlohmann::ordered_json& pool);
/// That, a line for each host, and what waits.
std::string pool_table(const nlohmann::ordered_json& pool);

}  // namespace fargpu::client::cli
