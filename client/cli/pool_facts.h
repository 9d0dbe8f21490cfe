#pragma once
// What a host says of the pool that it is a member of, by the pool's registry: for `fargpu ls`, `top`, `smi` and
// `quota`.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "control.capnp.h"
#include "filter.h"

namespace fargpu::client::cli {

/// Null where the host is of no such pool.
nlohmann::ordered_json describe_pool(wire::Status::Reader status, const Filter& filter);

/// Whether a host is shown by its own facts: by its address, its name or its name in the pool, and by its devices.
bool shows(const Filter& filter, const nlohmann::ordered_json& host);
/// Without the hosts that are not shown. One that tells of its pool stays for that, with nothing of its own.
std::vector<nlohmann::ordered_json> only_shown(std::vector<nlohmann::ordered_json> hosts, const Filter& filter);
/// A line for people if there is nothing to see.
std::string nothing_shown(const std::vector<nlohmann::ordered_json>& hosts, const Filter& filter);

/// The pools of which these hosts tell, each once: by a host that is in touch with its registry, if there is one.
std::vector<const nlohmann::ordered_json*> pools_of(const std::vector<nlohmann::ordered_json>& hosts);
/// A line that says how old all this is, and why; empty while it is not.
std::string pool_trouble(const nlohmann::ordered_json& pool);

/// A line of sums of the pool's hosts that `filter` shows.
std::string pool_sums(const nlohmann::ordered_json& pool, const Filter& filter);
/// That, a line for each host, and what waits.
std::string pool_table(const nlohmann::ordered_json& pool, const Filter& filter);

}  // namespace fargpu::client::cli
