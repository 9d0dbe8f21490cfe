#pragma once
// Which devices of this machine a connection can go by, if it is to stay on the interface that its address belongs to.

#include <sys/socket.h>

#include <filesystem>
#include <string>
#include <vector>

namespace fargpu::rdma {

/// What UCX goes by.
enum class Transports {
  cards,   ///< RDMA cards
  tcp,     ///< its own TCP, for trials and tests of what is ours
  memory,  ///< its shared memory on one machine, for trials too
};
/// "cards", "tcp" or "memory". False for another text.
bool parse_transports(const std::string& text, Transports& transports);

/// An address of this machine, and the network interface that has it.
struct InterfaceAddress {
  sockaddr_storage address{};
  std::string interface;
};
/// All of them. Needs a socket of netlink, which a sandbox may refuse: then there are none.
std::vector<InterfaceAddress> interface_addresses();

/// The interface that has this address; empty if none has.
std::string interface_of(const std::vector<InterfaceAddress>& all, const sockaddr_storage& address);

/// The active ports of RDMA cards that belong to this interface, as UCX names them ("mlx5_0:1"). `sys`: where the
/// kernel shows them.
std::vector<std::string> rdma_ports_of(const std::string& interface, const std::filesystem::path& sys = "/sys");

/// All active ports of RDMA cards.
std::vector<std::string> active_ports(const std::filesystem::path& sys = "/sys");

/// What to open for connections of this interface.
struct ToOpen {
  std::string devices;     ///< as UCX names them
  std::string transports;  ///< and these, as it names them
};
/// Throws RdmaError where there is nothing, with what is missing.
ToOpen to_open(const std::string& interface, Transports transports, const std::filesystem::path& sys = "/sys");

/// The local and the remote address of a connected socket; of the family AF_UNSPEC if it has none.
sockaddr_storage local_address(int descriptor);
sockaddr_storage remote_address(int descriptor);

}  // namespace fargpu::rdma
