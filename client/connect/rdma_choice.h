#pragma once
// Whether a session goes by RDMA, as far as this side decides.

#include <memory>
#include <string>

#include "client/base/config.h"
#include "protocol/channel.h"
#include "protocol/rdma/context.h"

namespace fargpu::client {

struct RdmaChoice {
  std::shared_ptr<rdma::OpenedDevices> devices;  ///< null: it does not
  std::string why_not;                           ///< then; empty where nobody could expect it
  bool required = false;                         ///< nothing else will do
};

/// For a session on this connection. `required`: as FARGPU_TRANSPORT or the host's address says. Devices are opened
/// once in a process. Threads: any.
RdmaChoice choose_rdma(const Config& config, const Channel& connection, bool required);

}  // namespace fargpu::client
