#include "spare_processors.h"

#include <sched.h>

#include <algorithm>
#include <ctime>

namespace fargpu {
namespace {

constexpr auto measure_after = std::chrono::microseconds(250);

}  // namespace

void SpareProcessors::note(Nanoseconds took, Nanoseconds lost, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  took_ += took;
  lost_ += lost;
  if (took_ < verdict_after) return;
  if (lost_ * lost_part > took_) {
    pause_ = std::clamp(2 * pause_, pause_least, pause_most);
    none_until_.store(now + std::chrono::duration_cast<Clock::duration>(pause_), std::memory_order_relaxed);
  } else {
    pause_ = {};
  }
  took_ = lost_ = {};
}

Spell::Nanoseconds Spell::thread_time() {
  timespec ran{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran);
  return std::chrono::seconds(ran.tv_sec) + Nanoseconds(ran.tv_nsec);
}

bool Spell::go_on(Clock::time_point now) {
  if (measuring_ && now - since_ >= measure_after) measure(now);
  if (!spare_.any(now)) {
    measuring_ = false;
    return false;
  }
  if (!measuring_) {
    measuring_ = true;
    since_ = now;
    ran_then_ = ran_();
  }
  ::sched_yield();
  return true;
}

void Spell::stop() {
  if (!measuring_) return;
  measure(Clock::now());
  measuring_ = false;
}

void Spell::measure(Clock::time_point now) {
  const Nanoseconds ran = ran_(), took = now - since_;
  spare_.note(took, std::max(Nanoseconds(0), took - (ran - ran_then_)), now);
  since_ = now;
  ran_then_ = ran;
}

}  // namespace fargpu
