#pragma once
// What the GPU changed in mapped memory of the host, on its way to the client.

#include "host_blocks.h"
#include "server/worker/call/client_requests.h"

namespace fargpu::server {

/// Used by the executor only.
class Deliveries {
 public:
  Deliveries(HostBlocks& blocks, ClientRequests& client) : blocks_(blocks), client_(client) {}

  /// Sends the client what has changed: before any answer that tells it of a completion.
  void send_changes();

 private:
  HostBlocks& blocks_;
  ClientRequests& client_;
};

}  // namespace fargpu::server
