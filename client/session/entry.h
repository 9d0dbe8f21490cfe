#pragma once
// What every exported function passes through. Nothing of C++ leaves it: no exception, no type, no allocator.

#include <cuda.h>

#include "client/call/error_log.h"
#include "client/call/waiting_prints.h"
#include "client/call/refusal.h"
#include "client/call/stats.h"
#include "process.h"
#include "route.h"
#include "symbols.h"
#include "client/objects/thread.h"
#include "client/call/trace.h"

#define FARGPU_EXPORT __attribute__((visibility("default")))

namespace fargpu::client {

/// `name(route)` says what the call names, for processes with several sessions.
template <Symbol symbol, class Body, class Name = NoRoute>
CUresult enter(Body&& body, Name&& name = {}) noexcept {
  Route route;
  if (life() != Life::ready) [[unlikely]] {
    if constexpr (std::is_same_v<std::remove_cvref_t<Name>, NoRoute>) {
      if (!serving()) return unavailable();
    } else {
      if (const CUresult elsewhere = route.begin(name); elsewhere != CUDA_SUCCESS) return elsewhere;
    }
  }
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
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY && life() != Life::forked) [[unlikely]]
    error_log().note(symbol, result);
  if (stats::tracing) [[unlikely]]
    stats::trace(symbol, result);
  return result;
}

}  // namespace fargpu::client
