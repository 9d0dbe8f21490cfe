#pragma once
// Whether the host still lives.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace fargpu::client {

/// Sends heartbeats while the host says nothing, and tells when it has been silent for too long. On a thread of its
/// own, which takes no lock of any part: whatever the thread that reads is stuck in, its waiting ends. Threads: any.
class Liveness {
 public:
  using Clock = std::chrono::steady_clock;

  /// `heard` changes with everything that comes from the host; `beat` sends a heartbeat without waiting, and says
  /// whether it could; `silent` says whether there is more to come: if not, it was called for the last time. While
  /// `paused` holds, the host cannot say anything.
  struct Calls {
    std::function<std::uint32_t()> heard;
    std::function<bool()> beat;
    std::function<bool()> silent;
    std::function<bool()> paused = [] { return false; };
  };
  Liveness(std::chrono::milliseconds silence, Calls calls) : silence_(silence), calls_(std::move(calls)) {}

  void start();
  void end();

  /// How long this process has not run until a moment ago, if long enough for the host to have given it up; else zero.
  std::chrono::seconds absence() const;

 private:
  void watch();

  const std::chrono::milliseconds silence_;
  const Calls calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::atomic<Clock::time_point> round_at_{Clock::now()};
  std::atomic<Clock::duration> absent_{Clock::duration::zero()};
};

}  // namespace fargpu::client
