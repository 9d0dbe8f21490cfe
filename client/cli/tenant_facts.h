#pragma once
// What a host says of the client that asks, and of its tenant: for `fargpu quota` and `fargpu doctor`.

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "control.capnp.h"

namespace fargpu::client::cli {

/// Limits of a tenant and what of them is in use; a limit of 0 is none.
nlohmann::ordered_json describe_tenant(wire::TenantStatus::Reader tenant);

/// One line for each limit: what is in use, and of how much.
std::vector<std::string> quota_lines(const nlohmann::ordered_json& tenant);

/// By what the host knows the client.
struct ClientIdentity {
  std::string kind;  ///< nothing, token, certificate, key or user; empty: the host is too old to say
  std::string name;
  std::optional<std::chrono::sys_seconds> expires;  ///< nothing: it does not end
  bool administrator = false;

  std::string text() const;  ///< for people, without its end
};
ClientIdentity read_identity(wire::Identity::Reader identity);
nlohmann::ordered_json describe(const ClientIdentity& identity);

}  // namespace fargpu::client::cli
