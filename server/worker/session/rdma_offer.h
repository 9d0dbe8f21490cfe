#pragma once
// RDMA, as the worker offers it to the client of a session.

#include <atomic>
#include <memory>
#include <string>

#include "protocol/rdma/context.h"
#include "server/worker/memory/gpu_direct.h"

namespace fargpu::server {

struct RdmaOffer {
  std::shared_ptr<rdma::OpenedDevices> devices;  ///< null: none
  std::string why_none;
  std::shared_ptr<GpuDirect> direct;  ///< of the session's lanes; null: they go through the host's memory
  std::atomic<bool> taken{false};     ///< the session goes by RDMA, and so do its bulk lanes
};

}  // namespace fargpu::server
