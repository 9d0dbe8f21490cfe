#pragma once
// What workers have told about the host that they are on.

#include <capnp/message.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control.capnp.h"
#include "server/worker_link.h"
#include "settings.h"

namespace fargpu::server {

class KnownHost {
 public:
  explicit KnownHost(const Settings& settings) : settings_(settings) {}

  void take_facts(std::unique_ptr<capnp::MallocMessageBuilder> facts, capnp::List<std::uint32_t>::Reader sm_groups);
  void take_rdma(capnp::List<wire::RdmaInterface>::Reader interfaces);

  /// Facts of all devices as the last worker with the standard profile told them; null before the first.
  std::optional<wire::HostFacts::Reader> facts() const;
  /// Into how many groups of multiprocessors each device can be divided, as the last worker said that could tell.
  const std::vector<unsigned>& sm_groups() const { return sm_groups_; }
  /// By which devices workers offer RDMA, by network interface.
  const std::map<std::string, std::string>& rdma() const { return rdma_; }
  /// Those of all devices, 16 bytes each; none before there are facts.
  std::vector<std::string> device_uuids() const;

 private:
  const Settings& settings_;
  // A builder, because a message reader may be asked only so often.
  std::unique_ptr<capnp::MallocMessageBuilder> facts_;
  std::vector<unsigned> sm_groups_;
  std::map<std::string, std::string> rdma_;  // devices by which workers offer RDMA, by interface
  std::set<std::string> without_rdma_;       // interfaces of which the log says so
};

}  // namespace fargpu::server
