#include "callbacks.h"

#include "client/objects/thread.h"

namespace fargpu::client {

std::uint64_t Callbacks::add(Function function) {
  thread_.start();
  const std::lock_guard lock(mutex_);
  functions_.emplace(next_, std::move(function));
  waiting_.fetch_add(1);
  return next_++;
}

std::uint64_t Callbacks::open(std::function<void()> reached) {
  const std::lock_guard lock(mutex_);
  open_.emplace(next_, std::move(reached));
  waiting_.fetch_add(1);
  return next_++;
}

void Callbacks::close(std::uint64_t number) {
  waiting_.fetch_sub(1);
  done_(number);
}

void Callbacks::remove(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (functions_.erase(number) + open_.erase(number) > 0) waiting_.fetch_sub(1);
}

void Callbacks::due(std::uint64_t number, CUresult stream_result) {
  std::unique_lock lock(mutex_);
  if (const auto found = open_.find(number); found != open_.end()) {
    const auto reached = std::move(found->second);
    open_.erase(found);
    lock.unlock();
    return reached();
  }
  const auto found = functions_.find(number);
  if (found == functions_.end()) return;
  call(number, [this, stream_result, function = std::move(found->second)] {
    function(stream_result);
    waiting_.fetch_sub(1);
  });
  functions_.erase(found);
}

void Callbacks::call(std::uint64_t number, std::function<void()> function) {
  thread_.run([this, number, function = std::move(function)] {
    due_();
    Thread::current().in_callback = true;
    function();
    Thread::current().in_callback = false;
    done_(number);
  });
}

}  // namespace fargpu::client
