// What the sources and the compiler's libraries ask of glibc and 2.28 does not have, by older means. All of it is
// hidden: a program that loads one of the libraries keeps its own.

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#define FARGPU_HIDDEN __attribute__((visibility("hidden")))

extern "C" {

// glibc 2.32: whether the process has one thread, for which reference counts need not be atomic. "No" is always right.
FARGPU_HIDDEN char __libc_single_threaded = 0;

// glibc 2.33. Before, they were part of what is linked statically. The kernel's struct is the one of glibc on 64-bit
// machines.
FARGPU_HIDDEN int stat(const char* path, struct stat* result) noexcept {
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, result, 0));
}
FARGPU_HIDDEN int lstat(const char* path, struct stat* result) noexcept {
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, result, AT_SYMLINK_NOFOLLOW));
}
FARGPU_HIDDEN int fstat(int file, struct stat* result) noexcept {
  return static_cast<int>(::syscall(SYS_fstat, file, result));
}
FARGPU_HIDDEN int fstat64(int file, struct stat64* result) noexcept {
  return static_cast<int>(::syscall(SYS_fstat, file, result));
}
FARGPU_HIDDEN int stat64(const char* path, struct stat64* result) noexcept {
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, result, 0));
}

// glibc 2.30. Where the process has it, it is taken. Else the wait is made of waits by the wall clock, of at most a
// second, so that a clock that is set does no harm; a wait that ends early is one that ended without a cause, which
// callers expect.
FARGPU_HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                         const timespec* end) noexcept(false) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static const Wait wait = reinterpret_cast<Wait>(::dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (wait) return wait(condition, mutex, clock, end);
  constexpr long long second = 1'000'000'000;
  const auto nanoseconds = [](const timespec& time) { return time.tv_sec * second + time.tv_nsec; };
  const auto left = [&] {
    timespec now;
    ::clock_gettime(clock, &now);
    return nanoseconds(*end) - nanoseconds(now);
  };
  const long long rest = left();
  if (rest <= 0) return ETIMEDOUT;
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  const long long until = nanoseconds(now) + (rest < second ? rest : second);
  const timespec part = {until / second, until % second};
  const int result = ::pthread_cond_timedwait(condition, mutex, &part);
  return result == ETIMEDOUT && left() > 0 ? 0 : result;
}

}  // extern "C"
