#include "driver/event.h"

#include <chrono>

namespace fargpu::softgpu {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<Task> Event::make_record() {
  auto record = std::make_shared<Record>();
  record->task = std::make_shared<FunctionTask>(FunctionTask::Place::inline_on_completion,
                                                [weak = std::weak_ptr<Record>(record)] {
                                                  if (auto self = weak.lock())
                                                    self->time_ns = now_ns();
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

std::shared_ptr<CapturedPlace> Event::captured() const {
  std::lock_guard lock(mutex_);
  return captured_;
}

void Event::set_captured(std::shared_ptr<CapturedPlace> place) {
  std::lock_guard lock(mutex_);
  captured_ = std::move(place);
}

}  // namespace fargpu::softgpu
