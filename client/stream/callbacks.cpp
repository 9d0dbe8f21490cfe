#include "callbacks.h"

#include "client/objects/thread.h"

namespace fargpu::client {

std::uint64_t Callbacks::add(Function function, bool always) {
  thread_.start();
  const std::lock_guard lock(mutex_);
  functions_.emplace(next_, Entry{std::move(function), always});
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
  done_(number);
  waiting_.fetch_sub(1);
}

bool Callbacks::remove(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (functions_.erase(number) + open_.erase(number) == 0) return false;
  waiting_.fetch_sub(1);
  return true;
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
  // It counts as one that may still write until what it wrote and its end have been sent: a later copy would overtake
  // them.
  thread_.run([this, number, stream_result, function = std::move(found->second.function)] {
    due_();
    run([&] { function(stream_result); });
    done_(number);
    waiting_.fetch_sub(1);
  });
  functions_.erase(found);
}

void Callbacks::call(std::uint64_t number, std::function<void()> function) {
  thread_.run([this, number, function = std::move(function)] {
    due_();
    run(function);
    done_(number);
  });
}

void Callbacks::skip(std::uint64_t number, CUresult error) {
  const std::lock_guard lock(mutex_);
  if (const auto found = functions_.find(number); found != functions_.end()) skip(found, error);
}

void Callbacks::lost(CUresult error, bool tells) {
  const std::lock_guard lock(mutex_);
  while (!functions_.empty()) skip(functions_.begin(), error, tells);
}

void Callbacks::skip(Functions::iterator found, CUresult error, bool tells) {
  Entry entry = std::move(found->second);
  functions_.erase(found);
  waiting_.fetch_sub(1);
  if (!entry.always || !tells) return;
  thread_.run([function = std::move(entry.function), error] { run([&] { function(error); }); });
}

template <class Act>
void Callbacks::run(Act&& act) {
  Thread::current().in_callback = true;
  act();
  Thread::current().in_callback = false;
}

}  // namespace fargpu::client
