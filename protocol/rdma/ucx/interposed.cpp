// What UCX's libraries must not have in a process that is a stranger's. The plugin is loaded so that its own symbols
// come first for the libraries that it brings along (RTLD_DEEPBIND), and for these alone: here are those of libc's
// functions by which UCX would read the program's UCX_* variables, handle its signals, follow its forks, start threads
// that take its signals, write to its standard error, end it, and leave descriptors to the programs that it starts.
// Functions of memory go where the program's own go, which may have another allocator than libc's.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <string_view>

#include "rescue.h"
#include "settings.h"

namespace {

// As the program finds it.
void* program_symbol(const char* name) {
  static void* const program = ::dlopen(nullptr, RTLD_NOW);
  if (void* const found = ::dlsym(program, name)) return found;
  return ::dlsym(RTLD_NEXT, name);  // a library of an old libc that only we need
}

template <class Function>
Function* program_function(Function*, const char* name) {
  return reinterpret_cast<Function*>(program_symbol(name));
}

struct Thread {
  void* (*body)(void*);
  void* argument;
};

void* run(void* thread_pointer) {
  const Thread thread = *std::unique_ptr<Thread>(static_cast<Thread*>(thread_pointer));
  fargpu::rdma::thread_of_ucx = true;
  return thread.body(thread.argument);
}

}  // namespace

#define OF_THE_PROGRAM(function) static auto* const function##_of_program = program_function(&::function, #function)

extern "C" {

#pragma GCC visibility push(default)

char* getenv(const char* name) noexcept {
  if (const char* const setting = fargpu::rdma::ucx_setting(name)) return const_cast<char*>(setting);
  if (fargpu::rdma::is_ucx_variable(name)) return nullptr;
  OF_THE_PROGRAM(getenv);
  return getenv_of_program(name);
}

int putenv(char*) noexcept { return 0; }
int setenv(const char*, const char*, int) noexcept { return 0; }
int unsetenv(const char*) noexcept { return 0; }

int sigaction(int, const struct sigaction*, struct sigaction* old) noexcept {
  if (old) std::memset(old, 0, sizeof(*old));
  return 0;
}
__sighandler_t signal(int, __sighandler_t) noexcept { return SIG_DFL; }

// In a child the lines are of no use, and nobody uses them.
int __register_atfork(void (*)(), void (*)(), void (*)(), void*) noexcept { return 0; }

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
  OF_THE_PROGRAM(pthread_create);
  auto wrapped = std::unique_ptr<Thread>(new (std::nothrow) Thread{body, argument});
  if (!wrapped) return EAGAIN;
  sigset_t all, before;
  ::sigfillset(&all);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) ::sigdelset(&all, own);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const int result = pthread_create_of_program(thread, attributes, run, wrapped.get());
  if (result == 0) wrapped.release();  // the thread has it
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

void abort() noexcept { fargpu::rdma::give_up(); }

// Before it aborts, UCX says why on standard error, past its log: "[host:pid:thread] file:line ...". Words for an
// eventfd or a pipe, which may have that number if the program has closed its own, begin otherwise.
ssize_t write(int descriptor, const void* bytes, std::size_t size) {
  if (descriptor == STDERR_FILENO && size > 0 && *static_cast<const char*>(bytes) == '[') {
    std::string_view text(static_cast<const char*>(bytes), size);
    text = text.substr(0, text.find_last_not_of('\n') + 1).substr(0, sizeof(fargpu::rdma::said) - 1);
    std::memcpy(fargpu::rdma::said, text.data(), text.size());
    fargpu::rdma::said[text.size()] = 0;
    return static_cast<ssize_t>(size);
  }
  OF_THE_PROGRAM(write);
  return write_of_program(descriptor, bytes, size);
}

// A program that is started would keep connections open beyond the life of the one that has made them.
int socket(int family, int type, int protocol) noexcept {
  OF_THE_PROGRAM(socket);
  return socket_of_program(family, type | SOCK_CLOEXEC, protocol);
}
int accept(int descriptor, sockaddr* address, socklen_t* size) {
  OF_THE_PROGRAM(accept4);
  return accept4_of_program(descriptor, address, size, SOCK_CLOEXEC);
}
int epoll_create(int) noexcept {
  OF_THE_PROGRAM(epoll_create1);
  return epoll_create1_of_program(EPOLL_CLOEXEC);
}
int eventfd(unsigned count, int flags) noexcept {
  OF_THE_PROGRAM(eventfd);
  return eventfd_of_program(count, flags | EFD_CLOEXEC);
}
int timerfd_create(clockid_t clock, int flags) noexcept {
  OF_THE_PROGRAM(timerfd_create);
  return timerfd_create_of_program(clock, flags | TFD_CLOEXEC);
}
int pipe(int* descriptors) noexcept {
  OF_THE_PROGRAM(pipe2);
  return pipe2_of_program(descriptors, O_CLOEXEC);
}
int open(const char* path, int flags, ...) {
  static auto* const open_of_program = reinterpret_cast<int (*)(const char*, int, ...)>(program_symbol("open"));
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  return open_of_program(path, flags | O_CLOEXEC, mode);
}

void* malloc(std::size_t bytes) noexcept {
  OF_THE_PROGRAM(malloc);
  return malloc_of_program(bytes);
}
void free(void* memory) noexcept {
  OF_THE_PROGRAM(free);
  free_of_program(memory);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  OF_THE_PROGRAM(calloc);
  return calloc_of_program(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) noexcept {
  OF_THE_PROGRAM(realloc);
  return realloc_of_program(memory, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  OF_THE_PROGRAM(posix_memalign);
  return posix_memalign_of_program(memory, alignment, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  static auto* const memalign_of_program =
      reinterpret_cast<void* (*)(std::size_t, std::size_t)>(program_symbol("memalign"));
  return memalign_of_program(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  OF_THE_PROGRAM(aligned_alloc);
  return aligned_alloc_of_program(alignment, bytes);
}
std::size_t malloc_usable_size(void* memory) noexcept {
  static auto* const size_of_program = reinterpret_cast<std::size_t (*)(void*)>(program_symbol("malloc_usable_size"));
  return size_of_program(memory);
}

#pragma GCC visibility pop

}  // extern "C"
