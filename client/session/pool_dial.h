#pragma once
// Getting the hosts of a program that asks for devices of several.

#include <memory>

#include "client/base/config.h"
#include "pool.h"

namespace fargpu::client {

/// Null if the configuration asks for devices of one host. Leases are held for as long as the pool lives. Throws
/// DialError.
std::unique_ptr<Pool> find_pool(const Config& config);

}  // namespace fargpu::client
