#include "threads.h"

#include <pthread.h>

#include <csignal>
#include <memory>

#include "protocol/errors.h"

namespace fargpu::client {
namespace {

constinit thread_local bool own_thread = false;

}  // namespace

bool is_own_thread() { return own_thread; }

void start_thread(const char* name, std::function<void()> body) {
  // Which may throw, before anything is changed.
  auto argument = std::make_unique<std::function<void()>>(std::move(body));
  sigset_t blocked, before;
  sigfillset(&blocked);
  // What a thread does to itself ends the process at once if it is blocked; host functions of the program run here.
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&blocked, own);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int error = pthread_create(
      &thread, &attributes,
      [](void* body) -> void* {
        const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(body));
        own_thread = true;
        (*owned)();
        return nullptr;
      },
      argument.get());
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) throw SystemError("a thread could not be started");
  (void)argument.release();
  pthread_setname_np(thread, name);
}

}  // namespace fargpu::client
