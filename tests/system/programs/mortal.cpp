// A library that is preloaded into fargpud and strikes it by a signal at a step: at its Nth call that other processes
// can see, either before the call or behind it. Which step, is in a file that the test writes to while the broker runs;
// how far the broker got is told there. Workers are started without this library.

#include <dlfcn.h>
#include <errno.h>  // NOLINT: program_invocation_short_name
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

/// The file's contents; tests/system/rig/mortal.py has the same.
struct Order {
  std::atomic<std::int32_t> process;  // 0: nobody's calls count; -1: those of the next broker, from its first one
  std::atomic<std::uint32_t> behind;  // 1: it is struck when the call has been made
  std::atomic<std::uint64_t> at;      // 0: count only
  std::atomic<std::uint64_t> count;
  std::atomic<std::int32_t> signal;  // by which it is struck
  std::atomic<std::uint32_t> struck;
  char call[24];  // that it was struck at
};

Order* order;

__attribute__((constructor)) void find_order() {
  const char* const path = std::getenv("FARGPU_MORTAL");
  if (!path || std::strcmp(program_invocation_short_name, "fargpud") != 0) return;
  const int file = ::open(path, O_RDWR | O_CLOEXEC);
  void* const memory = ::mmap(nullptr, sizeof(Order), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory != MAP_FAILED) order = static_cast<Order*>(memory);
  ::unsetenv("LD_PRELOAD");
}

// Whether this is the one.
bool now(const char* call) {
  const std::int32_t process = order ? order->process.load() : 0;
  if (process != -1 && process != ::getpid()) return false;
  if (++order->count != order->at) return false;
  std::snprintf(order->call, sizeof(order->call), "%s", call);
  return true;
}

void strike() {
  order->struck = 1;
  ::raise(order->signal);
}

template <class Call>
auto step(const char* name, bool seen, Call call) {
  const int before = errno;
  const bool last = seen && now(name);
  if (last && !order->behind) strike();
  errno = before;
  const auto result = call();
  if (!last || !order->behind) return result;
  const int after = errno;
  strike();
  errno = after;
  return result;
}

// What is written to others, and not to the log or to this process itself.
bool to_others(int descriptor) {
  struct stat there {};
  return descriptor > STDERR_FILENO && ::fstat(descriptor, &there) == 0 &&
         (S_ISSOCK(there.st_mode) || S_ISREG(there.st_mode));
}

bool makes(int flags) { return (flags & (O_CREAT | O_WRONLY | O_RDWR)) != 0; }

mode_t mode_behind(int flags, std::va_list rest) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
}

}  // namespace

// The C library's function of a name, called as a step that others see or not.
#define STEP(seen, function, ...)                                                                              \
  static const auto function##_there = reinterpret_cast<decltype(&::function)>(::dlsym(RTLD_NEXT, #function)); \
  return step(#function, seen, [&] { return function##_there(__VA_ARGS__); })

#pragma GCC visibility push(default)
extern "C" {

ssize_t send(int socket, const void* bytes, size_t count, int flags) { STEP(true, send, socket, bytes, count, flags); }
ssize_t sendmsg(int socket, const msghdr* message, int flags) { STEP(true, sendmsg, socket, message, flags); }
ssize_t recv(int socket, void* bytes, size_t count, int flags) { STEP(true, recv, socket, bytes, count, flags); }
ssize_t recvmsg(int socket, msghdr* message, int flags) { STEP(true, recvmsg, socket, message, flags); }
ssize_t write(int file, const void* bytes, size_t count) { STEP(to_others(file), write, file, bytes, count); }
ssize_t writev(int file, const iovec* parts, int count) { STEP(to_others(file), writev, file, parts, count); }
ssize_t pwrite(int file, const void* bytes, size_t count, off_t at) { STEP(true, pwrite, file, bytes, count, at); }
int ftruncate(int file, off_t bytes) noexcept { STEP(true, ftruncate, file, bytes); }
int flock(int file, int what) noexcept { STEP(true, flock, file, what); }
int accept(int socket, sockaddr* address, socklen_t* bytes) { STEP(true, accept, socket, address, bytes); }
int connect(int socket, const sockaddr* address, socklen_t bytes) { STEP(true, connect, socket, address, bytes); }
int bind(int socket, const sockaddr* address, socklen_t bytes) noexcept { STEP(true, bind, socket, address, bytes); }
int listen(int socket, int most) noexcept { STEP(true, listen, socket, most); }
int shutdown(int socket, int how) noexcept { STEP(true, shutdown, socket, how); }
int close(int file) { STEP(to_others(file), close, file); }
int mkdir(const char* path, mode_t mode) noexcept { STEP(true, mkdir, path, mode); }
int rename(const char* from, const char* to) noexcept { STEP(true, rename, from, to); }
int unlink(const char* path) noexcept { STEP(true, unlink, path); }
int memfd_create(const char* name, unsigned flags) noexcept { STEP(true, memfd_create, name, flags); }
int kill(pid_t process, int number) noexcept { STEP(true, kill, process, number); }

int open(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_behind(flags, rest);
  va_end(rest);
  STEP(makes(flags), open, path, flags, mode);
}

int posix_spawn(pid_t* process, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const arguments[], char* const variables[]) {
  STEP(true, posix_spawn, process, path, actions, attributes, arguments, variables);
}

}  // extern "C"
#pragma GCC visibility pop
