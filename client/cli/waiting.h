#pragma once
// Requests for leases that wait, at a host or in a pool: for `fargpu ls` and `top`.

#include <nlohmann/json.hpp>
#include <string>

#include "control.capnp.h"
#include "filter.h"

namespace fargpu::client::cli {

nlohmann::ordered_json describe_waiting(capnp::List<wire::WaiterStatus>::Reader waiting, const Filter& filter);

/// A line for each. At a host the reason says what is wanted; in a pool it does not.
enum class Wishes { in_reasons, told };
std::string waiting_text(const nlohmann::ordered_json& waiting, Wishes wishes);

}  // namespace fargpu::client::cli
