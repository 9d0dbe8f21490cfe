#include "thread.h"

#include <pthread.h>

#include <memory>
#include <mutex>
#include <unordered_map>

#include "client/base/life.h"
#include "client/base/log.h"
#include "client/base/threads.h"
#include "context.h"
#include "cuda_facts.h"

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
constinit std::atomic<CUresult> Thread::orphaned_error_{CUDA_SUCCESS};

Thread::Thread(std::uint32_t id) : id_(id), of_program_(!is_own_thread()) {}

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
  if (const EndAction action = end_action.load()) {
    const AnswersOnly answers_only(*ended);  // its calls tell nobody
    action(*ended);
  }
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.threads.erase(ended->id_);
  }
  const CUresult untold = ended->late_error_;
  const bool context_gone = ended->context() && !ended->context()->active;
  if (untold != CUDA_SUCCESS && ended->concerns_others_ && !context_gone) orphan(untold, ended->failed_call_);
  delete ended;
}

void Thread::deliver_error(std::uint32_t id, CUresult error, std::string_view call, bool concerns_others) {
  Registry& all = registry();
  std::unique_lock lock(all.mutex);
  const auto found = all.threads.find(id);
  if (found == all.threads.end()) {
    lock.unlock();
    if (concerns_others) orphan(error, call);
    return;
  }
  Thread& thread = *found->second;
  CUresult none = CUDA_SUCCESS;  // the first error stays
  if (!thread.late_error_.compare_exchange_strong(none, error)) return;
  thread.failed_call_ = call;
  thread.concerns_others_ = concerns_others;
}

// Only the first failure is kept. With several hosts none is: the next call may go to a host that it does not concern.
void Thread::orphan(CUresult error, std::string_view call) {
  if (!serving()) return;
  CUresult none = CUDA_SUCCESS;
  if (life() != Life::several && orphaned_error_.compare_exchange_strong(none, error))
    log::warn("{} failed with {}, and its thread has ended: the next call of another one returns that", call,
              result_name(error));
}

}  // namespace fargpu::client
