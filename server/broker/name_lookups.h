#pragma once
// Addresses of hosts by their names.

#include <asio.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fair_limit.h"

namespace fargpu::server {

/// Looks names up beside the broker's one thread, each on a thread of its own: a name server that does not answer holds
/// up nobody but those who have named it. So many at once and no more.
class NameLookups {
 public:
  using Endpoints = std::vector<asio::ip::tcp::endpoint>;
  using Found = std::function<void(const Endpoints&)>;
  static constexpr std::size_t at_once_max = 16;

  explicit NameLookups(asio::io_context& io) : io_(io) {}
  /// Calls `found` on the broker's thread, with nothing if there is no such name. False, and no call, if the tenant has
  /// its part of what is under way, or there is no room for more. A look-up counts until it is over, also where nobody
  /// waits for it any more.
  bool look_up(const std::string& host, std::uint16_t port, const std::string& tenant, Found found);

 private:
  asio::io_context& io_;
  FairLimit room_{at_once_max};
};

}  // namespace fargpu::server
