#include "job_thread.h"

#include <exception>
#include <utility>

#include "threads.h"

namespace fargpu::client {

void JobThread::run(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  start_locked();
  jobs_.push_back(std::move(job));
  any_.store(true, std::memory_order_release);
  if (asleep_) changed_.notify_one();
  else if (on_lookout_ != std::thread::id() && on_lookout_ != std::this_thread::get_id()) lookout_.wake();
}

void JobThread::start() {
  const std::lock_guard lock(mutex_);
  start_locked();
  if (!asleep_ || !lookout_.wait) return;
  sent_back_ = true;
  changed_.notify_one();
}

void JobThread::start_locked() {
  if (started_) return;
  start_thread(name_, [this] { loop(); });
  started_ = true;
}

void JobThread::loop() {
  while (true) {
    try {
      next()();
    } catch (const std::exception& error) {
      if (!failed_) throw;
      failed_(error.what());
    }
  }
}

std::function<void()> JobThread::next() {
  std::unique_lock lock(mutex_);
  bool tired = !lookout_.wait;
  while (jobs_.empty()) {
    if (tired) {
      asleep_ = true;
      changed_.wait(lock, [&] { return !jobs_.empty() || sent_back_; });
      asleep_ = false;
      tired = !std::exchange(sent_back_, false);
      continue;
    }
    on_lookout_ = std::this_thread::get_id();
    lock.unlock();
    tired = !lookout_.wait([this] { return any_.load(std::memory_order_acquire); });
    lock.lock();
    on_lookout_ = {};
  }
  std::function<void()> job = std::move(jobs_.front());
  jobs_.pop_front();
  any_.store(!jobs_.empty(), std::memory_order_relaxed);
  return job;
}

}  // namespace fargpu::client
