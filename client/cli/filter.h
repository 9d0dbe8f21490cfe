#pragma once
// Which hosts, tenants and models `fargpu ls`, `top` and `smi` show.

#include <string>

namespace fargpu::client::cli {

/// What is shown; all of it where nothing is said.
struct Filter {
  std::string host, tenant, model;  ///< patterns of hosts' names and of models, as shells have them; a tenant's name
  bool shows_host(const std::string& name) const;
  bool shows_tenant(const std::string& name) const { return tenant.empty() || tenant == name; }
  bool shows_model(const std::string& name) const;
  /// The part about hosts, as it was written.
  std::string hosts_text() const;
  bool empty() const { return host.empty() && tenant.empty() && model.empty(); }
};

}  // namespace fargpu::client::cli
