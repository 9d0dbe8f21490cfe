#include "driver/task.h"

#include <deque>
#include <utility>

#include "driver/service_pool.h"

namespace fargpu::softgpu {
namespace {

// Tasks that became ready on this thread, while an outer call works them off: a long chain of
// short tasks must not nest as deep as it is long.
thread_local std::deque<std::shared_ptr<Task>>* ready_on_this_thread = nullptr;

}  // namespace

void Task::depend_on(const std::shared_ptr<Task>& other) {
  if (other == nullptr || other->is_done()) return;
  std::lock_guard lock(other->mutex_);
  if (other->is_done()) return;
  pending_.fetch_add(1, std::memory_order_relaxed);
  other->successors_.push_back(shared_from_this());
}

void Task::submit() { release_dependency(); }

void Task::release_dependency() {
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (ready_on_this_thread != nullptr) {
    ready_on_this_thread->push_back(shared_from_this());
    return;
  }
  std::deque<std::shared_ptr<Task>> ready = {shared_from_this()};
  ready_on_this_thread = &ready;
  while (!ready.empty()) {
    std::shared_ptr<Task> next = std::move(ready.front());
    ready.pop_front();
    next->start();
  }
  ready_on_this_thread = nullptr;
}

void Task::complete() {
  std::vector<std::shared_ptr<Task>> successors;
  {
    std::lock_guard lock(mutex_);
    is_done_.store(true, std::memory_order_release);
    successors.swap(successors_);
  }
  is_done_.notify_all();
  for (const auto& successor : successors) successor->release_dependency();
}

void FunctionTask::start() {
  if (place_ == Place::inline_on_completion) return run();
  auto self = std::static_pointer_cast<FunctionTask>(shared_from_this());
  ServicePool::instance().post([self] { self->run(); });
}

void FunctionTask::run() {
  if (function_) std::exchange(function_, nullptr)();
  complete();
}

void DeferredTask::start() {
  auto self = std::static_pointer_cast<DeferredTask>(shared_from_this());
  auto function = std::exchange(function_, nullptr);
  function([self] { self->complete(); });
}

}  // namespace fargpu::softgpu
