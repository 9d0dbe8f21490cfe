#include "signal_stack.h"

namespace fargpu::client {
namespace {

/// As large as Go's, on which it must run.
constexpr std::size_t enough = 32u << 10;
constexpr std::size_t taken = 64u << 10;
/// What a function may use below its stack pointer (System V ABI, AMD64).
constexpr std::size_t red_zone = 128;

std::uint64_t stack_pointer(const ucontext_t& context) {
#if defined(__x86_64__)
  return static_cast<std::uint64_t>(context.uc_mcontext.gregs[REG_RSP]);
#else
  return context.uc_mcontext.sp;
#endif
}

bool too_small(std::uint64_t interrupted) {
  stack_t now{};
  if (::sigaltstack(nullptr, &now) != 0 || !(now.ss_flags & SS_ONSTACK) || now.ss_size >= enough) return false;
  const auto begin = reinterpret_cast<std::uint64_t>(now.ss_sp);
  return interrupted < begin || interrupted >= begin + now.ss_size;
}

struct Call {
  void (*body)(void*);
  void* argument;
  sigset_t blocked;  // by the handler
};

// Begins and ends with all signals blocked. In between the thread has no alternate stack: another handler would begin
// at its top, where this one's frames are. makecontext(3) passes numbers of 32 bits.
void make_call(unsigned low, unsigned high) {
  const auto& call = *reinterpret_cast<const Call*>(std::uint64_t{high} << 32 | low);
  stack_t none{}, own{};
  none.ss_flags = SS_DISABLE;
  sigset_t all;
  ::sigfillset(&all);
  ::sigaltstack(&none, &own);
  ::pthread_sigmask(SIG_SETMASK, &call.blocked, nullptr);
  call.body(call.argument);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ::sigaltstack(&own, nullptr);
}

}  // namespace

void SignalStack::call_there(const ucontext_t& interrupted, void (*body)(void*), void* argument) {
  const std::uint64_t top = (stack_pointer(interrupted) - red_zone) & ~std::uint64_t{15};
  ucontext_t here, there;
  if (!too_small(stack_pointer(interrupted)) || ::getcontext(&there) != 0) return body(argument);
  there.uc_stack.ss_sp = reinterpret_cast<void*>(top - taken);
  there.uc_stack.ss_size = taken;
  there.uc_link = &here;
  const Call call{body, argument, there.uc_sigmask};
  ::sigfillset(&there.uc_sigmask);
  // Also on the way back, on which the C library restores the mask before the stack.
  ::pthread_sigmask(SIG_SETMASK, &there.uc_sigmask, nullptr);
  const auto place = reinterpret_cast<std::uint64_t>(&call);
  ::makecontext(&there, reinterpret_cast<void (*)()>(&make_call), 2, static_cast<unsigned>(place),
                static_cast<unsigned>(place >> 32));
  const bool called = ::swapcontext(&here, &there) == 0;
  ::pthread_sigmask(SIG_SETMASK, &call.blocked, nullptr);
  if (!called) body(argument);
}

}  // namespace fargpu::client
