#include "callbacks.h"

#include "thread.h"
#include "threads.h"

namespace fargpu::client {

std::uint64_t Callbacks::add(Function function) {
  const std::lock_guard lock(mutex_);
  start();
  functions_.emplace(next_, std::move(function));
  waiting_.fetch_add(1);
  return next_++;
}

void Callbacks::remove(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (functions_.erase(number) > 0) waiting_.fetch_sub(1);
}

void Callbacks::due(std::uint64_t number, CUresult stream_result) {
  const std::lock_guard lock(mutex_);
  const auto found = functions_.find(number);
  if (found == functions_.end()) return;
  add_call(number, [this, stream_result, function = std::move(found->second)] {
    function(stream_result);
    waiting_.fetch_sub(1);
  });
  functions_.erase(found);
}

void Callbacks::call(std::uint64_t number, std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  start();
  add_call(number, std::move(function));
}

void Callbacks::add_call(std::uint64_t number, std::function<void()> function) {
  jobs_.emplace_back([this, number, function = std::move(function)] {
    Thread::current().in_callback = true;
    function();
    Thread::current().in_callback = false;
    done_(number);
  });
  changed_.notify_one();
}

void Callbacks::run(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  start();
  jobs_.push_back(std::move(job));
  changed_.notify_one();
}

void Callbacks::start() {
  if (started_) return;
  started_ = true;
  start_thread("fargpu-callback", [this] { loop(); });
}

void Callbacks::loop() {
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
