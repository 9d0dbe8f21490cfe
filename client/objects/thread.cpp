#include "thread.h"

#include <pthread.h>

#include <memory>
#include <mutex>
#include <unordered_map>

#include "client/base/life.h"

namespace fargpu::client {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::uint32_t, Thread*> threads;
  std::uint32_t next_id = 1;
};

Registry& registry() {
  static Registry* const instance = new Registry;  // outlives every thread
  return *instance;
}

using EndAction = void (*)(Thread& thread) noexcept;
constinit std::atomic<EndAction> end_action{nullptr};

}  // namespace

constinit thread_local Thread* Thread::current_ = nullptr;

void Thread::at_end(EndAction action) { end_action.store(action); }

Thread& Thread::make_current() {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    pthread_key_create(&made, &Thread::end);
    return made;
  }();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Thread> made(new Thread(all.next_id++));
  all.threads.emplace(made->id_, made.get());
  Thread* const thread = made.release();
  pthread_setspecific(key, thread);
  current_ = thread;
  return *thread;
}

// Destructors of other thread-local values may still make calls; they get a new Thread, which ends in the next round.
void Thread::end(void* thread) {
  auto* const ended = static_cast<Thread*>(thread);
  current_ = nullptr;
  if (life() == Life::forked) return;  // a thread that is not there may hold the lock
  if (const EndAction action = end_action.load()) action(*ended);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.threads.erase(ended->id_);
  delete ended;
}

void Thread::deliver_error(std::uint32_t id, CUresult error) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.threads.find(id);
  if (found == all.threads.end()) return;  // nobody left to tell
  CUresult none = CUDA_SUCCESS;            // the first error stays
  found->second->late_error_.compare_exchange_strong(none, error);
}

}  // namespace fargpu::client
