#pragma once
// The life of the client library in a process, from before cuInit to after exit.

#include <cuda.h>

#include <atomic>

namespace fargpu::client {

enum class Life : int {
  unborn,   ///< before cuInit: NOT_INITIALIZED
  ready,    ///< calls are served
  several,  ///< they are, by sessions with several hosts: each call looks for its own
  lost,     ///< the session is gone: DEVICE_UNAVAILABLE, for good
  forked,   ///< this is a child of a process that had called cuInit: NOT_INITIALIZED
  ended,    ///< the process is exiting: DEINITIALIZED
};

/// Changed by Process alone. Never destroyed: destructors of other libraries make calls after ours would have run.
extern constinit std::atomic<Life> current_life;
inline Life life() { return current_life.load(std::memory_order_acquire); }

/// Calls are served.
inline bool serving() { return life() == Life::ready || life() == Life::several; }

/// What a call returns while calls are not served.
CUresult unavailable();

}  // namespace fargpu::client
