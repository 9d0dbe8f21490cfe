#pragma once
// Hosts of a pool with a registry, of which one of them tells: for verbs that call these others.

#include <memory>
#include <optional>
#include <string>

#include "client/connect/control_connection.h"

namespace fargpu::client::cli {

struct PoolMember {
  std::string name, address;     ///< as people are shown them
  std::string identity;          ///< that the host tells in its hello; empty: not known
  std::optional<PoolHost> host;  ///< nothing: no client goes to that address
  std::string unfit;             ///< why it is nothing
};

/// As `by` tells of it: its address is followed only where a client may go (told_host()).
PoolMember read_member(wire::PoolHost::Reader member, const ControlConnection& by);

/// Says hello. Throws DialError, also if it has no fit address, or another host answers there.
std::unique_ptr<ControlConnection> connect_to(const PoolMember& member);

}  // namespace fargpu::client::cli
