#pragma once
// Listening sockets that this process was started with (sd_listen_fds(3)): those of the fargpud before it, which the
// service manager has kept, or of a socket unit.

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <vector>

#include "server/exchange.h"

namespace fargpu::server {

class GivenSockets {
 public:
  /// Takes them, and LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, which no process that is started later inherits. Before
  /// other threads, and before other descriptors are closed.
  GivenSockets();

  using Address = std::vector<std::byte>;
  template <class Endpoint>
  static Address address_of(const Endpoint& endpoint) {
    const auto* const begin = reinterpret_cast<const std::byte*>(endpoint.data());
    return {begin, begin + endpoint.size()};
  }
  struct Wanted {
    Address address;
    bool v6_only = false;  ///< of IPv6: not that of IPv4 as well
  };
  /// One that listens at this address. No number: there is none.
  Descriptor take(const Wanted& wanted);
  /// Names of those that nobody has taken and that listen at no wanted address, which are closed.
  std::vector<std::string> close_others(const std::vector<Wanted>& wanted);

 private:
  struct Given {
    Descriptor socket;
    std::string name;
  };
  static bool listens_at(const Given& given, const Wanted& wanted);
  std::vector<Given> given_;
};

}  // namespace fargpu::server
