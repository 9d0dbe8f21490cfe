#pragma once
// Clients, as the broker knows them.

#include <cstdint>
#include <string>

namespace fargpu::server {

/// What the broker knows of the client that a session serves.
struct ClientFacts {
  std::string program;
  std::string host_name;
  std::uint32_t process_id = 0;
  std::string peer;
  std::string tenant;
  std::string identity;        ///< by what the host knows it, for the log: "token anna"
  bool shares_memory = false;  ///< with its worker
  bool by_loopback = false;
};

}  // namespace fargpu::server
