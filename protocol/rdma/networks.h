#pragma once
// Networks on which RDMA is allowed: its traffic is readable by every machine that can listen there.

#include <sys/socket.h>

#include <cstdint>
#include <array>
#include <string>
#include <vector>

namespace fargpu::rdma {

/// Addresses as networks have them: "10.1.0.0/16,fd00:1::/32". "none" is no network, "all" is every one, an address
/// without a length is that address alone.
class Networks {
 public:
  /// The machine's own loopback.
  static constexpr const char* usual = "127.0.0.0/8,::1";

  /// False for a text that is not understood; `error` says what of it.
  static bool parse(const std::string& text, Networks& networks, std::string& error);
  /// An address that is neither of IPv4 nor of IPv6 is in none.
  bool contain(const sockaddr_storage& address) const;
  bool none() const { return networks_.empty(); }

 private:
  struct Network {
    std::array<std::uint8_t, 16> address;  // of IPv4 as IPv6 has them
    unsigned bits;
  };
  std::vector<Network> networks_;
};

}  // namespace fargpu::rdma
