#include "driver/event.h"

#include <chrono>

#include "driver/service_pool.h"

namespace fargpu::softgpu {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<Task> Event::make_record() {
  auto record = std::make_shared<Record>();
  const uint64_t number = shared_ != nullptr ? shared_->begin_record() : 0;
  record->task = std::make_shared<FunctionTask>(FunctionTask::Place::inline_on_completion,
                                                [weak = std::weak_ptr<Record>(record), shared = shared_, number] {
                                                  if (auto self = weak.lock()) self->time_ns = now_ns();
                                                  if (shared != nullptr) shared->end_record(number);
                                                });
  std::lock_guard lock(mutex_);
  last_ = record;
  captured_ = nullptr;
  return record->task;
}

std::shared_ptr<Event::Record> Event::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

bool Event::is_over() const {
  if (shared_ != nullptr) {
    uint64_t number = shared_->last();
    return shared_->is_over(number) || !shared_->is_alive(number);
  }
  auto record = last();
  return record == nullptr || record->task->is_done();
}

std::shared_ptr<Task> Event::last_task() const {
  if (shared_ == nullptr) {
    auto record = last();
    return record != nullptr ? record->task : nullptr;
  }
  uint64_t number = shared_->last();
  if (number == 0) return nullptr;
  auto task = std::make_shared<DeferredTask>([shared = shared_, number](DeferredTask::Finish finish) {
    Poller::instance().watch([shared, number] { return shared->is_over(number) || !shared->is_alive(number); },
                             std::move(finish));
  });
  task->submit();
  return task;
}

std::shared_ptr<CapturedPlace> Event::captured() const {
  std::lock_guard lock(mutex_);
  return captured_;
}

void Event::set_captured(std::shared_ptr<CapturedPlace> place) {
  std::lock_guard lock(mutex_);
  captured_ = std::move(place);
}

}  // namespace fargpu::softgpu
