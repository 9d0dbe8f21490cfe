#pragma once
// MPS daemons, by which a tenant's programs share a device: the site starts them, and without one the driver says
// nothing and isolates nothing.

#include <string>

namespace fargpu::server {

/// Why no MPS daemon can be reached by the pipes in this folder, and what to do; empty if one can, as far as can be
/// seen.
std::string mps_complaint(const std::string& folder);

}  // namespace fargpu::server
