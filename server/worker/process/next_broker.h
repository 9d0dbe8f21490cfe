#pragma once
// The door of a session at which the host's next broker finds it, when the broker that began it is gone.

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "server/exchange.h"
#include "worker_link.capnp.h"

namespace fargpu::server {

/// A Unix socket in the broker's runtime folder, where only its user comes in.
class NextBroker {
 public:
  /// `door`: a socket that is bound, and that nobody listens at yet; taken. -1: no broker will come.
  explicit NextBroker(int door) : door_(door) {}

  /// Opens the door: from now on, a broker that comes can ask which process is behind it. As the user that this process
  /// stays to be. `link`: to the present broker, whose user the next one has. Throws SystemError.
  void open(int link);
  bool may_come() const { return door_.number() >= 0; }

  /// Waits for it, and for a connection that is its. None: nobody can come any more.
  Descriptor wait();

 private:
  const Descriptor door_;
  uid_t user_ = 0;  // the broker's
};

/// Says something to a broker that has just come. Waits for room, but not for long. False if the broker is gone.
bool recount(int link, const std::function<void(wire::WorkerMessage::Builder)>& fill, int descriptor = -1);

}  // namespace fargpu::server
