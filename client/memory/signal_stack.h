#pragma once
// Stacks for handlers of signals.

#include <signal.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace fargpu::client {

/// Calls `body` with room for a call to the worker. A handler runs on the thread's alternate stack, if that has one, as
/// runtimes with small stacks of their own require (Go). Alternate stacks that are made for a few lines of a crash
/// report are too small: then `body` runs on the stack that the signal has interrupted. `context`: the handler's third
/// argument.
class SignalStack {
 public:
  template <class Body>
  static void call(void* context, Body&& body) {
    call_there(
        *static_cast<ucontext_t*>(context),
        [](void* argument) { (*static_cast<std::remove_reference_t<Body>*>(argument))(); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  static void call_there(const ucontext_t& interrupted, void (*body)(void*), void* argument);
};

}  // namespace fargpu::client
