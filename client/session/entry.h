#pragma once
// What every exported function passes through. Nothing of C++ leaves it: no exception, no type, no allocator.

#include <cuda.h>

#include <array>
#include <cstdint>
#include <type_traits>

#include "client/base/uncancelled.h"
#include "client/call/argument_text.h"
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

/// Calls that most often return without a system call, and that programs make by the million. Where they meet one after
/// all, the part that makes it keeps the thread from being cancelled: the command stream, the receiver, the lanes, what
/// wakes the service thread, host memory that kernels come to use, and what is written for people.
constexpr bool brief(Symbol symbol) {
  switch (symbol) {
    case Symbol::cuCtxGetCurrent:
    case Symbol::cuCtxGetDevice:
    case Symbol::cuCtxPopCurrent_v2:
    case Symbol::cuCtxPushCurrent_v2:
    case Symbol::cuCtxSetCurrent:
    case Symbol::cuDeviceGetAttribute:
    case Symbol::cuEventQuery:
    case Symbol::cuEventRecord:
    case Symbol::cuEventRecord_ptsz:
    case Symbol::cuFuncGetAttribute:
    case Symbol::cuGetErrorName:
    case Symbol::cuGetErrorString:
    case Symbol::cuLaunchKernel:
    case Symbol::cuLaunchKernel_ptsz:
    case Symbol::cuLaunchKernelEx:
    case Symbol::cuLaunchKernelEx_ptsz:
    case Symbol::cuMemsetD8Async:
    case Symbol::cuMemsetD8Async_ptsz:
    case Symbol::cuMemsetD16Async:
    case Symbol::cuMemsetD16Async_ptsz:
    case Symbol::cuMemsetD32Async:
    case Symbol::cuMemsetD32Async_ptsz:
    case Symbol::cuPointerGetAttribute:
    case Symbol::cuPointerGetAttributes:
    case Symbol::cuStreamIsCapturing:
    case Symbol::cuStreamIsCapturing_ptsz:
    case Symbol::cuStreamQuery:
    case Symbol::cuStreamQuery_ptsz:
    case Symbol::cuStreamSynchronize:
    case Symbol::cuStreamSynchronize_ptsz:
    case Symbol::cuStreamWaitEvent:
    case Symbol::cuStreamWaitEvent_ptsz: return true;
    default: return false;
  }
}

struct Cancellable {};
template <Symbol symbol>
using Cancelling = std::conditional_t<brief(symbol), Cancellable, Uncancelled>;

/// A call that is served. The part of enter() that all processes have.
template <Symbol symbol, class Body>
[[gnu::always_inline]] inline CUresult run(Body&& body) noexcept {
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
    note_error(symbol, result);
  return result;
}

/// `name(route)` says what the call names, for processes with several sessions. Apart from what all others pay for.
template <Symbol symbol, class Body, class Name>
[[gnu::noinline]] CUresult enter_by_route(Body& body, Name& name) noexcept {
  Route route;
  if constexpr (std::is_same_v<Name, NoRoute>) {
    if (!serving()) return unavailable();
  } else {
    if (const CUresult elsewhere = route.begin(name); elsewhere != CUDA_SUCCESS) return elsewhere;
  }
  return run<symbol>(body);
}

template <Symbol symbol, class Body, class Name = NoRoute>
[[gnu::always_inline]] inline CUresult enter(Body&& body, Name&& name = {}) noexcept {
  [[maybe_unused]] const Cancelling<symbol> cancelling;
  if (life() != Life::ready) [[unlikely]]
    return enter_by_route<symbol>(body, name);
  return run<symbol>(body);
}

/// FARGPU_LOG=trace. An entry asks for it where it returns, when its parameters lie in memory in any case.
template <class... Arguments>
[[gnu::noinline, gnu::cold]] CUresult traced(Symbol symbol, CUresult result, const Arguments&... arguments) noexcept {
  const std::array<std::uint64_t, sizeof...(arguments)> raw{raw_argument(arguments)...};
  stats::trace(symbol, raw, result);
  return result;
}

template <Symbol symbol, auto body, class... Arguments>
[[gnu::always_inline]] inline CUresult run_before_init(Arguments... arguments) noexcept {
  [[maybe_unused]] const Cancelling<symbol> cancelling;
  stats::count(symbol);
  CUresult result;
  try {
    result = body(arguments...);
  } catch (...) {
    result = result_of_exception(symbol);
  }
  // In the child of a fork the log's lock may be held by a thread that is not there.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY && life() != Life::forked) [[unlikely]]
    note_error(symbol, result);
  return result;
}

template <Symbol symbol, auto body, class... Arguments>
[[gnu::noinline, gnu::cold]] CUresult traced_before_init(Arguments... arguments) noexcept {
  return traced(symbol, run_before_init<symbol, body>(arguments...), arguments...);
}

/// A call that programs make before cuInit, too.
template <Symbol symbol, auto body, class... Arguments>
[[gnu::always_inline]] inline CUresult enter_before_init(Arguments... arguments) noexcept {
  if (stats::tracing) [[unlikely]]
    return traced_before_init<symbol, body>(arguments...);
  return run_before_init<symbol, body>(arguments...);
}

}  // namespace fargpu::client
