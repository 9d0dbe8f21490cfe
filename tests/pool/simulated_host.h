#pragma once
// A member of a pool whose devices are numbers: for tests and for pools of a thousand hosts in one process.

#include <asio.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/pool/member.h"

namespace fargpu::test {

class SimulatedHost {
 public:
  struct Options {
    std::string name;
    std::string identity;  ///< empty: its name
    unsigned devices = 1;
    std::uint64_t device_bytes = std::uint64_t{80} << 30;
    bool places = true;
    unsigned tenants = 0;                                     ///< that its settings name
    std::map<std::string, server::pool::LeaseRecord> leases;  ///< that an earlier broker of the host gave
  };
  SimulatedHost(asio::io_context& io, server::pool::Registry& registry, Options options);

  const std::string& name() const { return options_.name; }
  server::pool::Member& member() { return member_; }
  /// By the registry's name of each.
  const std::map<std::string, server::pool::LeaseRecord>& leases() const { return leases_; }
  unsigned devices_taken() const;
  /// How often the log told of an event.
  unsigned told(const std::string& event) const;
  /// Leases that were placed here, for which there was no room.
  std::uint64_t refusals() const { return refusals_; }

  void refuse_all() { refuses_ = true; }
  void drain(bool drains) {
    drains_ = drains;
    member_.changed();
  }
  /// Clients have come to all leases: the host keeps them whatever the registry says.
  void clients_come() { come_ = true; }
  /// A lease without the registry.
  void give(const std::string& id, const server::pool::LeaseRecord& lease);
  /// The client of a lease goes.
  void end(const std::string& id);

 private:
  struct Device {
    std::uint64_t bytes = 0;
    std::uint32_t percent = 100;
  };

  server::pool::HostRecord describe() const;
  server::pool::RoomRecord room() const;
  bool admit(const std::string& id, const server::pool::LeaseRecord& lease);
  std::vector<Device> left() const;
  static bool take(std::vector<Device>& left, const server::pool::LeaseRecord& lease);

  const Options options_;
  std::map<std::string, server::pool::LeaseRecord> leases_;
  std::map<std::string, unsigned> events_;
  std::uint64_t refusals_ = 0;
  bool refuses_ = false, come_ = false, drains_ = false;
  server::pool::Member member_;
};

}  // namespace fargpu::test
