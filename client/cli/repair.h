#pragma once
// What mends that a host gives no session, as `fargpu doctor` says it.

#include <string>

#include "client/connect/dial_error.h"

namespace fargpu::client::cli {

/// What to do about a host that is not reached, or does not let this client in.
std::string repair_of(const DialError& error);
/// What to do about a host that has let this client in, and gives it no session.
std::string repair_of_session(const DialError& error);

}  // namespace fargpu::client::cli
