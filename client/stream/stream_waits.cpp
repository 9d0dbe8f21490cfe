#include "stream_waits.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <vector>

#include "client/base/threads.h"

namespace fargpu::client {

void StreamWaits::add(std::uint64_t number, const MemoryOperation& wait, const Context& context) {
  const std::lock_guard lock(mutex_);
  expected_.emplace(number, Wait{wait, &context});
  open_.fetch_add(1);
  here_.fetch_add(1);
}

void StreamWaits::remove(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (expected_.erase(number) == 0) return;
  open_.fetch_sub(1);
  here_.fetch_sub(1);
}

bool StreamWaits::due(std::uint64_t number, CUresult stream_result) {
  const std::lock_guard lock(mutex_);
  auto wait = expected_.extract(number);
  if (!wait) return false;
  // On a stream that has failed nothing is worth waiting for: an operation that is no wait is over at once.
  if (stream_result != CUDA_SUCCESS) wait.mapped().operation = MemoryOperation();
  due_.insert(std::move(wait));
  if (!started_) start_thread("fargpu-waits", [this] { watch(); });
  started_ = true;
  changed_.notify_one();
  return true;
}

template <class Which>
void StreamWaits::end_those(Which&& which) {
  const std::lock_guard looking(looking_);
  const std::lock_guard lock(mutex_);
  for (Waits* const waits : {&expected_, &due_})
    for (auto& [number, wait] : *waits)
      if (which(wait)) wait.operation = MemoryOperation();
  changed_.notify_one();
}

void StreamWaits::forget(std::uint64_t base, std::uint64_t bytes) {
  end_those([&](const Wait& wait) {
    return wait.operation.waits() && wait.operation.address >= base && wait.operation.address - base < bytes;
  });
}

void StreamWaits::forget(const Context& context) {
  end_those([&](const Wait& wait) { return wait.context == &context; });
}

std::vector<std::uint64_t> StreamWaits::take_over() {
  const std::lock_guard looking(looking_);
  std::unique_lock lock(mutex_);
  const Waits due = due_;
  lock.unlock();
  std::vector<std::uint64_t> over;
  for (const auto& [number, wait] : due)
    if (!wait.operation.waits() || wait.operation.satisfied()) over.push_back(number);
  lock.lock();
  for (const std::uint64_t number : over) due_.erase(number);
  return over;
}

// Looks often at first, for values that come at once, and then every half millisecond.
void StreamWaits::watch() {
  using namespace std::chrono_literals;
  constexpr std::chrono::microseconds first = 10us, last = 500us;
  auto pause = first;
  while (true) {
    std::vector<std::uint64_t> over;
    try {
      over = take_over();
    } catch (const std::bad_alloc&) {  // they are there the next time
    }
    std::unique_lock lock(mutex_);
    if (over.empty()) {
      if (due_.empty()) {
        changed_.wait(lock, [&] { return !due_.empty(); });
        pause = first;
      } else {
        changed_.wait_for(lock, pause);
        pause = std::min(2 * pause, last);
      }
      continue;
    }
    pause = first;
    lock.unlock();
    for (const std::uint64_t number : over) {
      done_(number);
      open_.fetch_sub(1);
      here_.fetch_sub(1);
    }
  }
}

}  // namespace fargpu::client
