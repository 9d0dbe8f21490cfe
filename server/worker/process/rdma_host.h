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
  /// not have.
  RdmaHost(const std::string& networks, const std::string& transports);

  /// For the session on this connection.
  std::shared_ptr<RdmaOffer> offer(int connection) const;

 private:
  /// Those of an interface; `why` there are none.
  struct Opened {
    std::shared_ptr<rdma::OpenedDevices> devices;
    std::string why;
  };
  rdma::Networks networks_;
  std::vector<rdma::InterfaceAddress> addresses_;
  std::map<std::string, Opened> opened_;  // by interface
};

}  // namespace fargpu::server
