#include "vigil.h"

#include "protocol/limits.h"
#include "threads.h"

namespace fargpu::client {

void Vigil::start() {
  start_thread("fargpu-vigil", [this] { watch(); });
}

void Vigil::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_one();
}

void Vigil::watch() {
  const auto heartbeat = silence_ / limits::heartbeats_per_silence;
  std::uint32_t heard = calls_.heard();
  auto heard_at = Clock::now(), beat_at = heard_at;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, heartbeat / 4, [&] { return ended_; })) {
    lock.unlock();
    const auto now = Clock::now();
    if (calls_.heard() != heard) {
      heard = calls_.heard();
      heard_at = now;
    } else if (now - heard_at >= silence_) {
      calls_.silent();
      return;
    } else if (now - std::max(heard_at, beat_at) >= heartbeat && calls_.beat()) {
      beat_at = now;
    }
    lock.lock();
  }
}

}  // namespace fargpu::client
