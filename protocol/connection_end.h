#pragma once
// How a connection by a socket ended, as several threads find it.

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "errors.h"

namespace fargpu {

/// The kernel tells one thread of an error, and the others that the connection is at its end. So the first error is
/// kept. Threads: any.
class ConnectionEnd {
 public:
  /// `error`: of the system call that failed; 0 where it found the end. Throws ChannelEnded if the other end closed the
  /// connection in order, and ChannelClosed otherwise.
  [[noreturn]] void tell(const std::string& peer, int error) {
    // A connection that was closed in order, and then reset because more was sent on it, is EPIPE to the kernel.
    if (error != 0 && error != EPIPE) error_.store(error, std::memory_order_release);
    const int first = error_.load(std::memory_order_acquire);
    if (first == 0) throw ChannelEnded(peer + " closed the connection");
    throw ChannelClosed("connection to " + peer + " lost: " + std::strerror(first));
  }

 private:
  std::atomic<int> error_{0};
};

}  // namespace fargpu
