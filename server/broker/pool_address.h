#pragma once
// The address by which a pool sends clients to this host.

#include <asio/awaitable.hpp>

#include <string>

namespace fargpu::server {

/// Logs a warning if clients of other machines hardly reach this host by it: a loopback although the host listens to
/// others too (`listen` as in the settings), an address without tcp:// although the host speaks no TLS, or a name that
/// is unknown here. Clients may know more names, and still this is most often a mistake.
asio::awaitable<void> look_at_pool_address(std::string address, std::string listen, bool encrypts);

}  // namespace fargpu::server
