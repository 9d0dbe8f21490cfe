#include "aside.h"

namespace fargpu::server {

Aside::~Aside() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Aside::run(Work work, Done done) {
  const std::lock_guard lock(mutex_);
  ++under_way_;
  waiting_.emplace_back(std::move(work), std::move(done));
  if (busy_ + waiting_.size() > threads_.size() && threads_.size() < threads_max)
    threads_.emplace_back([this] { loop(); });
  changed_.notify_one();
}

bool Aside::collect() {
  std::vector<Done> finished;
  {
    const std::lock_guard lock(mutex_);
    finished.swap(finished_);
  }
  for (const Done& done : finished) {
    --under_way_;
    done();
  }
  return !finished.empty();
}

void Aside::loop() {
  prepare_();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    auto [work, done] = std::move(waiting_.front());
    waiting_.pop_front();
    ++busy_;
    lock.unlock();
    work();
    lock.lock();
    --busy_;
    finished_.push_back(std::move(done));
    waker_.signal();
  }
}

}  // namespace fargpu::server
