#pragma once
// What the hosts of a pool say of themselves, for the verbs that show it.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/base/config.h"
#include "client/connect/control_connection.h"
#include "control.capnp.h"
#include "pool_members.h"

namespace fargpu::client::cli {

/// Makes of a host and its status what is shown of it.
using Describe = std::function<nlohmann::ordered_json(const ControlConnection& host, wire::Status::Reader status)>;

/// What `describe` makes of each host, or its "host" and an "error", in their order; of a host that is named twice,
/// once. All are asked at once; `describe` is called by one thread at a time.
std::vector<nlohmann::ordered_json> statuses(const std::vector<PoolHost>& hosts, const Describe& describe,
                                             ControlConnection::For whom = ControlConnection::For::host);
/// Those of hosts of which others have told; after ten seconds no further ones are asked.
std::vector<nlohmann::ordered_json> statuses(const std::vector<PoolMember>& members, const Describe& describe);

/// Whether a host takes new sessions, in a word.
const char* host_state_text(wire::HostState state);

/// Where a session's device memory is, in a word; `running` if it is on its devices.
const char* residency_text(wire::SessionStatus::Reader session);

/// The exit code of a verb that showed these.
int exit_code(const std::vector<nlohmann::ordered_json>& statuses);

}  // namespace fargpu::client::cli
