#pragma once
// What a host says of the pool that it is a member of, by the pool's registry: for `fargpu ls`, `top` and `quota`.

#include <nlohmann/json.hpp>
#include <string>

#include "control.capnp.h"

namespace fargpu::client::cli {

/// What is shown; all of it where nothing is said.
struct Filter {
  std::string host, tenant, model;  ///< patterns of hosts' names and of models, as shells have them; a tenant's name
  bool shows_host(const std::string& name) const;
  bool shows_tenant(const std::string& name) const { return tenant.empty() || tenant == name; }
  bool shows_model(const std::string& name) const;
  bool empty() const { return host.empty() && tenant.empty() && model.empty(); }
};

/// Null where the host is of no such pool.
nlohmann::ordered_json describe_pool(wire::Status::Reader status, const Filter& filter);

/// A line of sums.
std::string pool_sums(const nlohmann::ordered_json& pool);
/// That, a line for each host, and what waits.
std::string pool_table(const nlohmann::ordered_json& pool);

}  // namespace fargpu::client::cli
