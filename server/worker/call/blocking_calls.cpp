#include "blocking_calls.h"

namespace fargpu::server {

BlockingCalls::~BlockingCalls() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void BlockingCalls::run(Work work, Done done) {
  const std::lock_guard lock(mutex_);
  ++under_way_;
  waiting_.emplace_back(std::move(work), std::move(done));
  if (busy_ + waiting_.size() > threads_.size() && threads_.size() < threads_max_)
    threads_.emplace_back([this] { loop(); });
  changed_.notify_one();
}

void BlockingCalls::wait_for_all() {
  std::unique_lock lock(mutex_);
  quiet_.wait(lock, [&] { return waiting_.empty() && busy_ == 0; });
}

bool BlockingCalls::collect() {
  Jobs finished;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    finished.swap(finished_);
  }
  for (const auto& [work, done] : finished) {
    --under_way_;
    done();
  }
  return !finished.empty();
}

void BlockingCalls::loop() {
  prepare_();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    Jobs job;
    job.splice(job.begin(), waiting_, waiting_.begin());
    ++busy_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      job.front().first();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    --busy_;
    if (failure) failure_ = failure;
    finished_.splice(finished_.end(), job);
    if (waiting_.empty() && busy_ == 0) quiet_.notify_all();
    waker_.signal();
  }
}

}  // namespace fargpu::server
