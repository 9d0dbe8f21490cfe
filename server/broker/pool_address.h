#pragma once
// The address by which a pool sends clients to this host.

#include <asio/awaitable.hpp>

#include <string>

namespace fargpu::server {

/// Logs a warning if the name in HOST:PORT, with or without a scheme in front, is unknown here, or is this machine's
/// alone although the host is `open` to others. Clients may know more names, and still this is most often a mistake.
asio::awaitable<void> look_at_pool_address(std::string address, bool open);

}  // namespace fargpu::server
