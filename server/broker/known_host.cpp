#include "known_host.h"

#include <algorithm>

#include "event_log.h"
#include "protocol/rdma/networks.h"
#include "protocol/text.h"
#include "server/sm_groups.h"

namespace fargpu::server {

void KnownHost::take_facts(std::unique_ptr<capnp::MallocMessageBuilder> facts,
                           capnp::List<std::uint32_t>::Reader sm_groups) {
  facts_ = std::move(facts);
  // One that MPS gives a percentage makes no groups.
  std::vector<unsigned> groups;
  for (const std::uint32_t count : sm_groups) groups.push_back(std::min(count, sm_groups_max));
  groups.resize(facts_->getRoot<wire::HostFacts>().getDevices().size());
  if (std::any_of(groups.begin(), groups.end(), [](unsigned count) { return count != 0; }))
    sm_groups_ = std::move(groups);
}

// Every worker that is started for any client tells this. The operator may have changed something since the last one.
void KnownHost::take_rdma(capnp::List<wire::RdmaInterface>::Reader interfaces) {
  std::map<std::string, std::string> offered;
  const bool wanted = settings_.rdma_networks != rdma::Networks::usual && settings_.rdma_networks != "none";
  const auto warn = [&](const std::string& where, const std::string& reason) {
    if (wanted && without_rdma_.insert(where).second)
      EventLog::warn("no RDMA", {{"interface", where},
                                 {"reason", reason},
                                 {"meaning", "clients of this network go by TCP; repair that, or see rdma_networks"}});
  };
  if (interfaces.size() == 0) warn("none", "no address of this machine is in rdma_networks");
  constexpr unsigned interfaces_max = 64;
  for (unsigned i = 0; i < std::min(interfaces.size(), interfaces_max); ++i) {
    const auto one = interfaces[i];
    const std::string name = printable(one.getName().cStr(), 64);
    if (one.getWhyNone().size() > 0) warn(name, printable(one.getWhyNone().cStr(), 512));
    else offered.emplace(name, printable(one.getDevices().cStr(), 256));
  }
  for (const auto& [name, devices] : offered)
    if (!rdma_.contains(name)) EventLog::info("RDMA offered", {{"interface", name}, {"devices", devices}});
  rdma_ = std::move(offered);
}

std::optional<wire::HostFacts::Reader> KnownHost::facts() const {
  if (!facts_) return std::nullopt;
  return facts_->getRoot<wire::HostFacts>().asReader();
}

std::vector<std::string> KnownHost::device_uuids() const {
  std::vector<std::string> uuids;
  if (const auto known = facts())
    for (const auto device : known->getDevices())
      uuids.emplace_back(reinterpret_cast<const char*>(device.getUuid().begin()), device.getUuid().size());
  return uuids;
}

}  // namespace fargpu::server
