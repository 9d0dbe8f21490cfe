#pragma once
// What every exported function passes through. Nothing of C++ leaves it: no exception, no type, no allocator.

#include <cuda.h>
#include <pthread.h>

#include <type_traits>

#include "client/call/error_log.h"
#include "client/call/waiting_prints.h"
#include "client/call/refusal.h"
#include "client/call/stats.h"
#include "process.h"
#include "symbols.h"
#include "client/objects/thread.h"
#include "client/call/trace.h"

#define FARGPU_EXPORT __attribute__((visibility("default")))

namespace fargpu::client {

/// Keeps a thread that is cancelled meanwhile (pthread_cancel) until the call is over: within, what it has begun would
/// stay half done, and locks with it.
class Uncancelled {
 public:
  Uncancelled() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~Uncancelled() { ::pthread_setcancelstate(before_, nullptr); }
  Uncancelled(const Uncancelled&) = delete;
  Uncancelled& operator=(const Uncancelled&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};
struct Cancellable {
  Cancellable() {}  // as its counterpart, which no variable of it is needless for
};

/// Calls that make no system call and wait for nobody, and of which programs make very many: a thread cannot be
/// cancelled in them.
constexpr bool brief(Symbol symbol) {
  switch (symbol) {
    case Symbol::cuCtxGetCurrent:
    case Symbol::cuCtxGetDevice:
    case Symbol::cuCtxGetDevice_v2:
    case Symbol::cuCtxPopCurrent_v2:
    case Symbol::cuCtxPushCurrent_v2:
    case Symbol::cuCtxSetCurrent:
    case Symbol::cuDeviceGetAttribute:
    case Symbol::cuDevicePrimaryCtxGetState:
    case Symbol::cuGetErrorName:
    case Symbol::cuGetErrorString:
    case Symbol::cuPointerGetAttribute:
    case Symbol::cuPointerGetAttributes:
    case Symbol::cuStreamIsCapturing: return true;
    default: return false;
  }
}
template <Symbol symbol>
using Cancelling = std::conditional_t<brief(symbol), Cancellable, Uncancelled>;

/// What is told of a call that failed may go to a file.
inline void note_failure(Symbol symbol, CUresult result) noexcept {
  const Uncancelled uncancelled;
  error_log().note(symbol, result);
}
inline void trace_call(Symbol symbol, CUresult result) noexcept {
  const Uncancelled uncancelled;
  stats::trace(symbol, result);
}

template <Symbol symbol, class Body>
CUresult enter(Body&& body) noexcept {
  if (life() != Life::ready) [[unlikely]]
    return unavailable();
  const Cancelling<symbol> cancelling;
  stats::count(symbol);
  CUresult result;
  bool in_callback = false;
  try {
    Thread& thread = Thread::current();
    in_callback = thread.in_callback;
    thread.call = symbol;
    trace::Call traced;
    // cuLaunchHostFunc: the function must not call CUDA.
    result = in_callback ? CUDA_ERROR_NOT_PERMITTED : body(thread);
    traced.returns(thread, symbol, result);
  } catch (...) {
    result = result_of_exception(symbol);
  }
  if (!in_callback) waiting_prints.write();
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) [[unlikely]]
    note_failure(symbol, result);
  if (stats::tracing) [[unlikely]]
    trace_call(symbol, result);
  return result;
}

template <Symbol symbol, class Body>
CUresult enter_before_init(Body&& body) noexcept {
  const Cancelling<symbol> cancelling;
  stats::count(symbol);
  CUresult result;
  try {
    result = body();
  } catch (...) {
    result = result_of_exception(symbol);
  }
  // In the child of a fork the log's lock may be held by a thread that is not there.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY && life() != Life::forked) [[unlikely]]
    note_failure(symbol, result);
  if (stats::tracing) [[unlikely]]
    trace_call(symbol, result);
  return result;
}

}  // namespace fargpu::client
