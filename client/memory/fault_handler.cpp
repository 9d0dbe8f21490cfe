#include "fault_handler.h"

#include <signal.h>
#include <ucontext.h>

#include <cerrno>
#include <cstdint>
#include <exception>

#include "client/base/log.h"
#include "client/base/life.h"
#include "client/base/uncancelled.h"
#include "signal_stack.h"
#include "watched.h"

namespace fargpu::client {
namespace {

Watched watched;
struct sigaction before;

// Whether the access was a write. Where the processor does not say, a page becomes readable first, and a second fault
// tells.
bool was_write([[maybe_unused]] void* context) {
#if defined(__x86_64__)
  constexpr greg_t write_bit = 2;  // of the page-fault error code
  return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & write_bit;
#else
  return false;
#endif
}

void pass_on(int signal, siginfo_t* info, void* context) {
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
    ::signal(signal, SIG_DFL);  // the access is tried again, and ends the process as it would have
  } else {
    before.sa_handler(signal);
  }
}

// Runs on the thread that touched the page, in the middle of the program's own code: no lock of ours is held, because
// we never touch the program's memory under one.
void on_fault(int signal, siginfo_t* info, void* context) {
  const Uncancelled uncancelled;
  const int saved_errno = errno;
  bool ours = false;
  // What a forked child has not got it cannot get.
  if (info->si_code == SEGV_ACCERR && life() != Life::forked) {
    const auto address = reinterpret_cast<std::uint64_t>(info->si_addr);
    const auto fault = [&] {
      try {
        ours = watched.any([&](WatchedPages& memory) { return memory.fault(address, was_write(context)); });
      } catch (const std::exception& error) {
        log::error("the program uses memory whose contents cannot be read: {}", error.what());
      }
    };
    // Not where a stack has come to its end.
    if (watched.any([&](const WatchedPages& memory) { return memory.covers(address); }))
      SignalStack::call(context, fault);
  }
  errno = saved_errno;
  if (!ours) pass_on(signal, info, context);
}

}  // namespace

void watch_faults(WatchedPages& memory, std::size_t kind) {
  watched.add(memory, kind);
  struct sigaction now;
  ::sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault) return;
  before = now;
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART | SA_ONSTACK;
  ::sigemptyset(&ours.sa_mask);
  ::sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace fargpu::client
