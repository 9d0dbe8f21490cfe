#include "system_calls.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <link.h>
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
#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "client/base/log.h"
#include "client/base/life.h"
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

// In the sixth argument, which none of these calls uses, of those that the handler makes itself. Filters are inherited
// by programs that are started from here, so that it must be the same in all of them.
constexpr std::uint64_t let_pass = 0x6661726770750001;

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

struct Code {
  std::uint64_t begin, last;
};

// Where this process makes such calls: the C library, and the program itself, whose runtime may do without that. A
// program that is started from here inherits the filter. Its C library lies elsewhere, and its calls pass, although it
// may know nothing of fargpu.
std::vector<Code> callers() {
  std::vector<Code> found;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* argument) {
        const std::string_view path = info->dlpi_name, name = path.substr(path.rfind('/') + 1);
        if (!path.empty() && !name.starts_with("libc.so") && !name.starts_with("libpthread.so")) return 0;
        for (const ElfW(Phdr) & part : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
          if (part.p_type != PT_LOAD || !(part.p_flags & PF_X) || part.p_memsz == 0) continue;
          const std::uint64_t begin = info->dlpi_addr + part.p_vaddr, last = begin + part.p_memsz - 1;
          const std::uint64_t middle = last >> 32 << 32;  // a filter looks at halves of addresses
          auto& list = *static_cast<std::vector<Code>*>(argument);
          if (begin >= middle) list.push_back({begin, last});
          else list.insert(list.end(), {{begin, middle - 1}, {middle, last}});
        }
        return 0;
      },
      &found);
  return found;
}

/// A filter in the making: instructions, and where they jump to.
class Program {
 public:
  enum Target { next, caller, buffer, mark, stop, pass };
  static constexpr std::uint8_t targets = pass + 1;

  void begin(Target target) { places_[target] = code_.size(); }
  void load(std::size_t offset) { add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset))); }
  /// `condition`: BPF_JEQ, BPF_JGE or BPF_JGT, of what was loaded and this value.
  void jump(unsigned condition, std::uint64_t value, Target yes, Target no) {
    jumps_.push_back({code_.size(), yes, no});
    add(BPF_JUMP(BPF_JMP | BPF_K | condition, static_cast<std::uint32_t>(value), 0, 0));
  }
  /// Skips so many instructions where it does not hold.
  void unless_skip(unsigned condition, std::uint64_t value, std::uint8_t count) {
    add(BPF_JUMP(BPF_JMP | BPF_K | condition, static_cast<std::uint32_t>(value), 0, count));
  }
  void answer(std::uint32_t action) { add(BPF_STMT(BPF_RET | BPF_K, action)); }

  std::vector<sock_filter> finish() {
    const auto distance = [&](std::size_t from, Target to) {
      return to == next ? std::uint8_t{0} : static_cast<std::uint8_t>(places_[to] - from - 1);
    };
    for (const auto& [place, yes, no] : jumps_) {
      code_[place].jt = distance(place, yes);
      code_[place].jf = distance(place, no);
    }
    return code_;
  }

 private:
  void add(const sock_filter& instruction) { code_.push_back(instruction); }

  struct Jump {
    std::size_t place;
    Target yes, no;
  };
  std::vector<sock_filter> code_;
  std::vector<Jump> jumps_;
  std::array<std::size_t, targets> places_{};
};

// Jumps reach 255 instructions.
constexpr std::size_t callers_max = 32;

std::vector<sock_filter> filter_of(const std::array<Window, 2>& windows) {
  constexpr std::size_t half = 4;
  constexpr auto high = [](std::uint64_t address) { return address >> 32; };
  Program program;
  program.load(offsetof(seccomp_data, arch));
  program.jump(BPF_JEQ, AUDIT_ARCH_X86_64, Program::next, Program::pass);
  program.load(offsetof(seccomp_data, nr));
  for (const long number : {SYS_read, SYS_write, SYS_pread64, SYS_pwrite64, SYS_sendto})
    program.jump(BPF_JEQ, static_cast<std::uint64_t>(number), Program::buffer, Program::next);
  program.jump(BPF_JEQ, SYS_recvfrom, Program::buffer, Program::pass);
  program.begin(Program::buffer);  // of which the upper half is looked at: what is stopped for nothing is made likewise
  program.load(offsetof(seccomp_data, args[1]) + half);
  for (const Window& window : windows) {
    if (window.bytes == 0) continue;
    program.unless_skip(BPF_JGE, high(window.base), 1);
    program.jump(BPF_JGT, high(window.base + window.bytes - 1), Program::next, Program::caller);
  }
  program.jump(BPF_JEQ, 0, Program::pass, Program::pass);
  program.begin(Program::caller);
  auto code = callers();
  code.resize(std::min(code.size(), callers_max));
  for (const Code& range : code) {
    program.load(offsetof(seccomp_data, instruction_pointer) + half);
    program.unless_skip(BPF_JEQ, high(range.begin), 3);
    program.load(offsetof(seccomp_data, instruction_pointer));
    program.unless_skip(BPF_JGE, range.begin, 1);
    program.jump(BPF_JGT, range.last, Program::next, Program::mark);
  }
  program.jump(BPF_JEQ, 0, Program::pass, Program::pass);
  program.begin(Program::mark);
  program.load(offsetof(seccomp_data, args[5]));
  program.jump(BPF_JEQ, let_pass, Program::next, Program::stop);
  program.load(offsetof(seccomp_data, args[5]) + half);
  program.jump(BPF_JEQ, high(let_pass), Program::pass, Program::stop);
  program.begin(Program::stop);
  program.answer(SECCOMP_RET_TRAP);
  program.begin(Program::pass);
  program.answer(SECCOMP_RET_ALLOW);
  return program.finish();
}

bool install(const std::array<Window, 2>& windows) {
  std::vector<sock_filter> program = filter_of(windows);
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
