#include "system_calls.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <vector>

#include "client/base/log.h"
#include "client/base/life.h"
#include "call_filter.h"
#include "signal_stack.h"
#include "watched.h"

namespace fargpu::client {
namespace {

Watched watched;

}  // namespace

void touch_pages(std::uint64_t address, std::uint64_t bytes, bool writing) noexcept {
  if (life() == Life::forked) return;
  try {
    watched.any([&](WatchedPages& memory) {
      memory.touch(address, bytes, writing);
      return false;
    });
  } catch (const std::exception& error) {
    log::error("a system call uses memory whose contents cannot be read: {}", error.what());  // and fails with EFAULT
  }
}

bool may_call_again(int file, bool reading) noexcept {
  struct stat status;
  return !reading || (::fstat(file, &status) == 0 && (S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode)));
}

#if defined(__x86_64__)

namespace {

constexpr int stopped_by_filter = 1;  // the kernel's SYS_SECCOMP, which the C library does not name

struct sigaction before;

struct Stopped {
  long number;
  std::array<std::uint64_t, 6> arguments;
};

bool writes_memory(long number) { return number == SYS_read || number == SYS_pread64 || number == SYS_recvfrom; }

long raw_call(long number, const std::array<std::uint64_t, 6>& a) {
  register std::uint64_t r10 asm("r10") = a[3];
  register std::uint64_t r8 asm("r8") = a[4];
  register std::uint64_t r9 asm("r9") = a[5];
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

// As the kernel would have made it. Sockets' calls have six arguments of their own and are made in their general form.
long make(const Stopped& call) {
  std::array<std::uint64_t, 6> a = call.arguments;
  if (call.number != SYS_sendto && call.number != SYS_recvfrom) {
    a[5] = let_pass;
    return raw_call(call.number, a);
  }
  iovec buffer{reinterpret_cast<void*>(a[1]), a[2]};
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  message.msg_name = reinterpret_cast<void*>(a[4]);
  if (call.number == SYS_sendto) {
    message.msg_namelen = static_cast<socklen_t>(a[5]);
    return raw_call(SYS_sendmsg, {a[0], reinterpret_cast<std::uint64_t>(&message), a[3], 0, 0, 0});
  }
  auto* const length = reinterpret_cast<socklen_t*>(a[5]);
  if (message.msg_name && length) message.msg_namelen = *length;
  const long result = raw_call(SYS_recvmsg, {a[0], reinterpret_cast<std::uint64_t>(&message), a[3], 0, 0, 0});
  if (result >= 0 && message.msg_name && length) *length = message.msg_namelen;
  return result;
}

void pass_on(int signal, siginfo_t* info, void* context) {
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler == SIG_DFL) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  } else if (before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
}

void on_stopped(int signal, siginfo_t* info, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto argument = [&](int name) { return static_cast<std::uint64_t>(registers[name]); };
  const Stopped call{
      info->si_syscall,
      {argument(REG_RDI), argument(REG_RSI), argument(REG_RDX), argument(REG_R10), argument(REG_R8), argument(REG_R9)}};
  const bool ours = info->si_code == stopped_by_filter && (writes_memory(call.number) || call.number == SYS_write ||
                                                           call.number == SYS_pwrite64 || call.number == SYS_sendto);
  if (!ours) {
    pass_on(signal, info, context);
    return;
  }
  const int saved_errno = errno;
  const bool reading = writes_memory(call.number);
  // The C library may have the thread be cancelled at any moment of such a call, which no code of ours can bear.
  const auto touch = [&] { touch_pages(call.arguments[1], call.arguments[2], reading); };
  for (int again = 0; again <= calls_again_max; ++again) {
    int type = PTHREAD_CANCEL_DEFERRED;
    ::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
    SignalStack::call(context, touch);
    ::pthread_setcanceltype(type, nullptr);
    registers[REG_RAX] = make(call);
    if (registers[REG_RAX] != -EFAULT || !may_call_again(static_cast<int>(call.arguments[0]), reading)) break;
  }
  errno = saved_errno;
}

// Before the first filter, and for good: without a handler the kernel kills the process in a call that it stops.
void handle() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction ours {};
    ours.sa_sigaction = on_stopped;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART | SA_ONSTACK;
    ::sigemptyset(&ours.sa_mask);
    ::sigaction(SIGSYS, &ours, &before);
  });
}

bool install(const std::array<Window, 2>& windows) {
  std::vector<sock_filter> program = call_filter(windows);
  handle();
  sock_fprog filter{.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

}  // namespace

void watch_system_calls(WatchedPages& memory, std::size_t kind, const std::array<Window, 2>& windows) {
  if (!watched.add(memory, kind)) return;
  // A filter stays for good: a later session of the process has the same windows.
  static std::mutex mutex;
  static std::vector<std::uint64_t> installed;
  const std::lock_guard lock(mutex);
  if (std::find(installed.begin(), installed.end(), windows[0].base) != installed.end()) return;
  const bool done = install(windows);
  installed.push_back(windows[0].base);
  if (!done)
    log::warn(
        "system calls on managed memory, and on large pinned memory, that the GPU has used fail with EFAULT here, "
        "because seccomp is not "
        "available ({}); "
        "touch the memory before, or copy",
        std::strerror(errno));
}

void expect_system_calls() {
  if (::prctl(PR_GET_SECCOMP) == SECCOMP_MODE_FILTER) handle();
}

#else

void expect_system_calls() {}

void watch_system_calls(WatchedPages& memory, std::size_t kind, const std::array<Window, 2>&) {
  watched.add(memory, kind);
  static std::atomic<bool> said{false};
  if (!said.exchange(true))
    log::warn(
        "system calls on managed memory, and on large pinned memory, that the GPU has used fail with EFAULT on this "
        "processor; touch the "
        "memory before, or copy");
}

#endif

}  // namespace fargpu::client
