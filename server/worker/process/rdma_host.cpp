#include "rdma_host.h"

#include "protocol/errors.h"

namespace fargpu::server {

RdmaHost::RdmaHost(const std::string& networks, const std::string& transports, bool gpus)
    : addresses_(rdma::interface_addresses()) {
  std::string error;
  auto by = rdma::Transports::cards;
  if (!rdma::Networks::parse(networks, networks_, error) || !rdma::parse_transports(transports, by))
    throw SystemError("networks or transports of RDMA that are none: " + networks + ", " + transports);
  for (const rdma::InterfaceAddress& one : addresses_) {
    if (!networks_.contain(one.address) || opened_.contains(one.interface)) continue;
    Opened& opened = opened_[one.interface];
    try {
      const rdma::ToOpen what = rdma::to_open(one.interface, by);
      opened.names = what.devices;
      opened.devices = std::make_shared<rdma::OpenedDevices>(rdma::plugin(), what.devices, what.transports);
    } catch (const rdma::RdmaError& fault) {
      opened.why = fault.what();
    }
    if (opened.devices && gpus) open_for_gpus(opened, one.interface, by);
  }
}

// Apart from the others, so that what UCX makes of GPUs stays away from what needs none.
void RdmaHost::open_for_gpus(Opened& opened, const std::string& interface, rdma::Transports by) {
  try {
    if (by != rdma::Transports::cards) throw rdma::RdmaError("rdma_transports is not cards");
    const rdma::ToOpen what = rdma::to_open(interface, by);
    opened.for_gpus = std::make_shared<rdma::OpenedDevices>(rdma::plugin(), what.devices,
                                                            what.transports + "," + rdma::gpu_transport);
  } catch (const rdma::RdmaError& fault) {
    opened.why_not_for_gpus = fault.what();
  }
}

std::vector<RdmaHost::Interface> RdmaHost::interfaces() const {
  std::vector<Interface> all;
  for (const auto& [name, opened] : opened_)
    all.push_back({.name = name, .devices = opened.names, .why_none = opened.why});
  return all;
}

GpuDirect::Options RdmaHost::direct_options(int connection) const {
  const auto opened = opened_.find(rdma::interface_of(addresses_, rdma::local_address(connection)));
  if (opened == opened_.end()) return {};
  return {.devices = opened->second.for_gpus, .why_none = opened->second.why_not_for_gpus, .tell = {}};
}

std::shared_ptr<RdmaOffer> RdmaHost::offer(int connection) const {
  auto offer = std::make_shared<RdmaOffer>();
  const sockaddr_storage here = rdma::local_address(connection), there = rdma::remote_address(connection);
  const auto opened = opened_.find(rdma::interface_of(addresses_, here));
  if (here.ss_family == AF_UNSPEC) {
    offer->why_none = "the client came by a Unix socket";
  } else if (!networks_.contain(there) || opened == opened_.end()) {
    offer->why_none =
        "the host does not offer RDMA on this network, because it is not encrypted; the setting rdma_networks of its "
        "fargpud names those on which it does";
  } else {
    offer->devices = opened->second.devices;
    offer->why_none = opened->second.why;
  }
  return offer;
}

}  // namespace fargpu::server
