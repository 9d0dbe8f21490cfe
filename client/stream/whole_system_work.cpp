#include "whole_system_work.h"

#include <exception>
#include <utility>

#include "client/base/life.h"
#include "client/base/log.h"
#include "client/base/threads.h"
#include "client/base/uncancelled.h"
#include "client/call/calls.h"
#include "client/objects/stream.h"
#include "client/objects/thread.h"
#include "fences.h"
#include "stream_waits.h"

namespace fargpu::client {

using Clock = std::chrono::steady_clock;

void WholeSystemWork::Launch::begin(WholeSystemWork& work) {
  if (stream_.capture.load()) return work.captured();
  number_ = work.begin();
  work_ = &work;
}

// The fence is passed as well if the launch was refused.
void WholeSystemWork::Launch::end() noexcept {
  const Uncancelled uncancelled;
  try {
    work_->fences_.after(thread_, stream_, [work = work_, number = number_] { work->end(number); });
  } catch (const std::exception&) {  // the session is lost
    work_->end(number_);
  }
}

std::uint64_t WholeSystemWork::begin() {
  const Uncancelled uncancelled;
  std::unique_lock lock(mutex_);
  if (looks_ > 0) changed_.wait_for(lock, courtesy, [&] { return looks_ == 0; });
  under_way_.insert(next_);
  return next_++;
}

void WholeSystemWork::end(std::uint64_t number) noexcept {
  const std::lock_guard lock(mutex_);
  under_way_.erase(number);
  changed_.notify_all();
}

bool WholeSystemWork::under_way() const {
  if (!exists()) return false;
  const std::lock_guard lock(mutex_);
  return !under_way_.empty();
}

bool WholeSystemWork::is_turn() {
  const std::lock_guard lock(mutex_);
  return is_turn_locked();
}

bool WholeSystemWork::is_turn_locked() const {
  return under_way_.upper_bound(in_vain_) == under_way_.end() || looks_in_vain_ >= looks_in_vain_max || !serving() ||
         is_own_thread() || Thread::current().in_callback || stream_waits_.any();
}

WholeSystemWork::Look::~Look() {
  if (!counted_) return;
  const std::lock_guard lock(work_.mutex_);
  --work_.looks_;
  work_.changed_.notify_all();
}

void WholeSystemWork::wait(Look& look) noexcept {
  using namespace std::chrono_literals;
  const Uncancelled uncancelled;
  try {
    calls_.commands.flush();  // what is waited for may not have been sent
  } catch (const std::exception&) {
    look.in_vain_ = true;  // the session is lost: the program's own memory is not
    return;
  }
  std::unique_lock lock(mutex_);
  if (!std::exchange(look.counted_, true)) {
    ++looks_;
    look.begun_ = Clock::now();
  }
  std::uint64_t oldest = 0;
  auto since = Clock::now();
  while (!is_turn_locked()) {
    const auto now = Clock::now();
    if (const std::uint64_t first = *under_way_.upper_bound(in_vain_); std::exchange(oldest, first) != first)
      since = now;
    if (now - since < patience && now - look.begun_ < patience_in_all) {
      changed_.wait_for(lock, 20ms);
      continue;
    }
    look.in_vain_ = true;
    in_vain_ = next_ - 1;
    const bool last = ++looks_in_vain_ == looks_in_vain_max;
    lock.unlock();
    log::warn(
        "a kernel with atomics or fences of the whole system has not ended for {} s, and may be waiting for the "
        "program: the program goes on beside {}; what both change at the same time may be seen late, in another order, "
        "or be lost (docs/reference/over-a-network.md)",
        patience.count(), last ? "it and all such kernels" : "it");
    return;
  }
}

}  // namespace fargpu::client
