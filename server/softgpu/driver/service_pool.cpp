#include "driver/service_pool.h"

#include <pthread.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace fargpu::softgpu {
namespace {

constexpr auto poll_pause = std::chrono::microseconds(20);

void start_thread(const char* name, std::function<void()> body) {
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  thread.detach();
}

}  // namespace

ServicePool& ServicePool::instance() {
  static auto* pool = new ServicePool();
  return *pool;
}

void ServicePool::post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  if (queue_.size() > idle_count_ && thread_count_ < threads_max) {
    ++thread_count_;
    start_thread("softgpu-service", [this] { run(); });
  }
  has_work_.notify_one();
}

void ServicePool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_count_;
    has_work_.wait(lock, [this] { return !queue_.empty(); });
    --idle_count_;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

Poller& Poller::instance() {
  static auto* poller = new Poller();
  return *poller;
}

void Poller::watch(std::function<bool()> is_met, std::function<void()> then) {
  if (is_met()) return then();
  std::lock_guard lock(mutex_);
  watches_.push_back({std::move(is_met), std::move(then)});
  if (!is_started_) {
    is_started_ = true;
    start_thread("softgpu-poll", [this] { run(); });
  }
  has_watches_.notify_one();
}

void Poller::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_watches_.wait(lock, [this] { return !watches_.empty(); });
    std::deque<Watch> current = std::exchange(watches_, {});
    lock.unlock();
    std::deque<Watch> unmet;
    for (Watch& watch : current) {
      if (watch.is_met()) watch.then();
      else unmet.push_back(std::move(watch));
    }
    if (!unmet.empty()) std::this_thread::sleep_for(poll_pause);
    lock.lock();
    for (Watch& watch : unmet) watches_.push_back(std::move(watch));
  }
}

}  // namespace fargpu::softgpu
