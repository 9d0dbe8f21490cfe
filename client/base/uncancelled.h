#pragma once
// Threads of the program that are cancelled (pthread_cancel) in the middle of a call.

#include <pthread.h>

namespace fargpu::client {

/// While it lives a cancellation of this thread waits. The unwinding of a cancelled thread would leave frames half
/// sent, and cannot pass functions that let no exception through.
class Uncancelled {
 public:
  Uncancelled() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~Uncancelled() { ::pthread_setcancelstate(before_, nullptr); }
  Uncancelled(const Uncancelled&) = delete;
  Uncancelled& operator=(const Uncancelled&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace fargpu::client
