#pragma once
// UCX's settings, which are ours and not those of the program's environment.

namespace fargpu::rdma {

/// Whether it is one of UCX's variables, with or without a prefix of its user.
bool is_ucx_variable(const char* name);
/// What UCX finds in that variable; null for nothing.
const char* ucx_setting(const char* name);

}  // namespace fargpu::rdma
