#pragma once
// The store by which the hosts of a pool agree.

#include <asio.hpp>

#include <memory>

#include "server/pool/registry.h"
#include "settings.h"

namespace fargpu::server {

/// As the settings name it. Nothing is said to it yet. Throws SettingsError.
std::unique_ptr<pool::Registry> open_registry(asio::io_context& io, const Settings& settings);

}  // namespace fargpu::server
