#pragma once
// The host's part in RDMA: devices are opened before there is a sandbox, which lets nothing of the kind happen, and
// offered to the clients that the settings name.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/rdma/context.h"
#include "protocol/rdma/devices.h"
#include "protocol/rdma/networks.h"
#include "server/worker/session/rdma_offer.h"

namespace fargpu::server {

class RdmaHost {
 public:
  /// Opens the devices of every interface of this machine with an address in these networks (setting rdma_networks).
  /// What cannot be opened is told to the client that would have used it. Throws SystemError for texts that settings do
  /// not have. `gpus`: cards are opened once more, for memory of GPUs.
  RdmaHost(const std::string& networks, const std::string& transports, bool gpus);

  /// What is offered on an interface, by devices as UCX names them; or why nothing is.
  struct Interface {
    std::string name, devices, why_none;
  };
  /// Those with an address in the networks, for the operator.
  std::vector<Interface> interfaces() const;

  /// For the session on this connection.
  std::shared_ptr<RdmaOffer> offer(int connection) const;
  /// The devices that know memory of GPUs, on the same interface; the rest is the caller's.
  GpuDirect::Options direct_options(int connection) const;

 private:
  /// Those of an interface; `why` there are none.
  struct Opened {
    std::string names;
    std::shared_ptr<rdma::OpenedDevices> devices;
    std::string why;
    std::shared_ptr<rdma::OpenedDevices> for_gpus;
    std::string why_not_for_gpus;
  };
  static void open_for_gpus(Opened& opened, const std::string& interface, rdma::Transports by);

  rdma::Networks networks_;
  std::vector<rdma::InterfaceAddress> addresses_;
  std::map<std::string, Opened> opened_;  // by interface
};

}  // namespace fargpu::server
