#pragma once
// Connections to other hosts, for workers whose programs have devices there too.

#include <asio.hpp>

#include <cstdint>
#include <functional>
#include <string>

#include "name_lookups.h"
#include "protocol/rdma/networks.h"
#include "settings.h"

namespace fargpu::server {

/// A client names the host, so only addresses that the settings allow are dialled, for a while, a few at a time.
/// Everything runs on the broker's one thread.
class Dials {
 public:
  /// A connected socket, which the callee owns, or why there is none.
  using Done = std::function<void(int descriptor, const std::string& failure)>;
  Dials(asio::io_context& io, const Settings& settings);

  void dial(const std::string& host, std::uint16_t port, const std::string& tenant, Done done);

  /// How many were refused because of their address so far.
  std::uint64_t refused() const { return refused_; }

 private:
  class Attempt;
  bool allowed(const asio::ip::tcp::endpoint& address) const;

  asio::io_context& io_;
  rdma::Networks networks_;
  bool loopback_ = false;  // is where this broker listens, and nowhere else
  NameLookups names_;
  std::size_t under_way_ = 0;
  std::uint64_t refused_ = 0;
};

/// Connects to another host for the programs of one session.
inline constexpr std::uint32_t dials_of_session_max = 128;

}  // namespace fargpu::server
