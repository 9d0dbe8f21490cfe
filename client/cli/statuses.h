#pragma once
// What the hosts of a pool say of themselves, for the verbs that show it.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/base/config.h"
#include "control.capnp.h"

namespace fargpu::client::cli {

/// Makes of a host's name and status what is shown of it.
using Describe = std::function<nlohmann::ordered_json(const std::string& host, wire::Status::Reader status)>;

/// What `describe` makes of each host, or its "host" and an "error", in their order. All are asked at once, as one that
/// is silent is waited for for seconds; `describe` is called by one thread at a time.
std::vector<nlohmann::ordered_json> statuses(const std::vector<PoolHost>& hosts, const Describe& describe);

/// Where a session's device memory is, in a word; `running` if it is on its devices.
const char* residency_text(wire::SessionStatus::Reader session);

/// Of a verb that showed these.
int exit_code(const std::vector<nlohmann::ordered_json>& statuses);

}  // namespace fargpu::client::cli
