#include "job_thread.h"

#include <utility>

#include "threads.h"

namespace fargpu::client {

void JobThread::run(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  start_locked();
  jobs_.push_back(std::move(job));
  changed_.notify_one();
}

void JobThread::start() {
  const std::lock_guard lock(mutex_);
  start_locked();
}

void JobThread::start_locked() {
  if (started_) return;
  started_ = true;
  start_thread(name_, [this] { loop(); });
}

void JobThread::loop() {
  while (true) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !jobs_.empty(); });
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace fargpu::client
