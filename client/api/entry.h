#pragma once
// What every exported function passes through. Nothing of C++ leaves it: no exception, no type, no allocator.

#include <cuda.h>

#include "client/call/error_log.h"
#include "client/call/waiting_prints.h"
#include "client/session/process.h"
#include "client/call/stats.h"
#include "symbols.h"
#include "client/objects/thread.h"
#include "client/call/trace.h"

#define FARGPU_EXPORT __attribute__((visibility("default")))

namespace fargpu::client {

/// Turns the exception in flight into a CUresult; those that mean the end of the connection end the session.
CUresult result_of_exception(Symbol symbol) noexcept;

/// A call that fargpu does not serve: says so once, by name.
CUresult refuse(Symbol symbol) noexcept;

/// A call, or a use of one, that is not served, for a reason that is not the whole symbol's: says so once.
CUresult refuse_use(const char* what) noexcept;

/// The same where an attribute of the device says that it is not served, and programs try it all the same: said only at level debug.
CUresult refuse_denied(const char* what) noexcept;

template <Symbol symbol, class Body>
CUresult enter(Body&& body) noexcept {
  if (process().life() != Life::ready) [[unlikely]]
    return process().unavailable();
  stats::count(symbol);
  CUresult result;
  bool in_callback = false;
  try {
    Thread& thread = Thread::current();
    in_callback = thread.in_callback;
    trace::Call traced;
    // cuLaunchHostFunc: the function must not call CUDA.
    result = in_callback ? CUDA_ERROR_NOT_PERMITTED : body(thread);
    traced.returns(thread, symbol, result);
  } catch (...) {
    result = result_of_exception(symbol);
  }
  if (!in_callback) waiting_prints.write();
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) [[unlikely]]
    error_log().note(symbol, result);
  if (stats::tracing) [[unlikely]]
    stats::trace(symbol, result);
  return result;
}

template <Symbol symbol, class Body>
CUresult enter_before_init(Body&& body) noexcept {
  stats::count(symbol);
  CUresult result;
  try {
    result = body();
  } catch (...) {
    result = result_of_exception(symbol);
  }
  // In the child of a fork the log's lock may be held by a thread that is not there.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY && process().life() != Life::forked) [[unlikely]]
    error_log().note(symbol, result);
  if (stats::tracing) [[unlikely]]
    stats::trace(symbol, result);
  return result;
}

}  // namespace fargpu::client
