#pragma once
// What the environment says of RDMA.

#include <string>

#include "protocol/rdma/devices.h"
#include "protocol/rdma/networks.h"

namespace fargpu::client {

struct RdmaOptions {
  rdma::Networks networks;                                ///< FARGPU_RDMA: of hosts to which it is allowed
  rdma::Transports transports = rdma::Transports::cards;  ///< FARGPU_RDMA_TRANSPORTS
};

/// A variable that is not what it may be is told in `error`, and counts as unset.
RdmaOptions read_rdma_options(std::string& error);

}  // namespace fargpu::client
