#pragma once
// Certificates and tokens that are about to end.

#include <asio.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "protocol/site/tokens.h"
#include "settings.h"

namespace fargpu::server {

/// Warns at the start, and every day, of what ends within `notice`. Used by the broker's one thread.
class ExpiryWatch {
 public:
  using Time = std::chrono::sys_seconds;
  static constexpr auto notice = std::chrono::days(30);

  ExpiryWatch(asio::io_context& io, const Settings& settings) : settings_(settings), timer_(io) {}

  /// Throws SettingsError if a certificate that the host shows, or its clients' authority, has ended at `now`.
  static void require_valid(const Settings& settings, Time now);
  /// From now on.
  void start();
  /// Once, now.
  void look();

  struct Certificate {
    const char* setting;
    std::string file;
    Time expires;
  };
  /// Of the files that the settings name; those that cannot be read are left out.
  std::vector<Certificate> certificates() const;
  /// Tokens that have an end ahead of them, the next one first, at most so many. None where the file cannot be read,
  /// of which the log tells.
  std::vector<site::TokenEntry> tokens(std::size_t most) const;

 private:
  void wait();

  const Settings& settings_;
  asio::steady_timer timer_;
};

}  // namespace fargpu::server
