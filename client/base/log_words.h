#pragma once
// What FARGPU_LOG says that nobody understands.

#include <string>

namespace fargpu::client::log {

/// In words; empty if all is understood. The first use of the log has warned of it.
std::string complaint();
/// Takes that out of FARGPU_LOG: libraries and programs that are loaded later do not warn of it again.
void drop_what_is_not_understood();

}  // namespace fargpu::client::log
