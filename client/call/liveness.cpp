#include "liveness.h"

#include "protocol/limits.h"
#include "client/base/threads.h"

namespace fargpu::client {

void Liveness::start() {
  start_thread("fargpu-liveness", [this] { watch(); });
}

void Liveness::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_one();
}

std::chrono::seconds Liveness::absence() const {
  const auto now = Clock::now() - round_at_.load();  // this thread may be the first that runs again
  return std::chrono::duration_cast<std::chrono::seconds>(now >= silence_ ? now : absent_.load());
}

void Liveness::watch() {
  const auto heartbeat = silence_ / limits::heartbeats_per_silence;
  std::uint32_t heard = calls_.heard();
  auto heard_at = Clock::now(), beat_at = heard_at, back_at = heard_at;
  round_at_ = heard_at;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, heartbeat / 4, [&] { return ended_; })) {
    lock.unlock();
    const auto now = Clock::now();
    if (const auto missed = now - round_at_.exchange(now); missed >= silence_) {
      // Stopped, by a signal for example. What the host said meanwhile is still to be read.
      absent_ = missed;
      heard_at = back_at = now;
    } else if (now - back_at >= silence_) {
      absent_ = Clock::duration::zero();
    }
    if (calls_.heard() != heard || calls_.paused()) {
      heard = calls_.heard();
      heard_at = now;
    } else if (now - heard_at >= silence_) {
      if (!calls_.silent()) return;
      heard_at = now;
    } else if (now - std::max(heard_at, beat_at) >= heartbeat && calls_.beat()) {
      beat_at = now;
    }
    lock.lock();
  }
}

}  // namespace fargpu::client
