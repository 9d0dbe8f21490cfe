#pragma once
// Whether there are processors to spare for threads that wait by looking again and again.

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>

namespace fargpu {

/// The quickest way to wait takes a whole processor. Where no processor is idle, it is one that a computing thread
/// needs. The scheduler shows that: it takes the processor from the waiting thread for a good part of the time. Then
/// all threads that ask here sleep for a while instead, and look again later. This costs nothing but two readings of a
/// clock for each wait that takes long, and it sees other programs, processors that this process may not use, and
/// quotas alike. Threads: any.
class SpareProcessors {
 public:
  using Clock = std::chrono::steady_clock;
  using Nanoseconds = std::chrono::nanoseconds;

  /// As long as most answers take. Shorter waits are not measured.
  static constexpr Nanoseconds moment = std::chrono::microseconds(50);
  /// As long as going to sleep and being woken takes, about: where nothing is to spare, looking for longer would cost
  /// more than it gains.
  static constexpr Nanoseconds least = std::chrono::microseconds(10);
  /// The time of waiting after which there is a verdict.
  static constexpr Nanoseconds verdict_after = std::chrono::milliseconds(2);
  /// For how long nothing is to spare after the first such verdict, and after many in a row: each is twice the one
  /// before.
  static constexpr Nanoseconds pause_least = std::chrono::milliseconds(50), pause_most = std::chrono::milliseconds(800);
  /// A thread that had to stand aside for more than this part of the time took somebody else's processor for the rest.
  static constexpr int lost_part = 8;

  /// Whether any are, as far as is known.
  bool any(Clock::time_point now) const { return now >= none_until_.load(std::memory_order_relaxed); }
  /// How long to look before anything else is done.
  Nanoseconds first_look(Clock::time_point now) const { return any(now) ? moment : least; }
  /// A thread has waited without sleeping for `took`, `lost` of which others had its processor.
  void note(Nanoseconds took, Nanoseconds lost, Clock::time_point now);

 private:
  std::atomic<Clock::time_point> none_until_{Clock::time_point::min()};
  std::mutex mutex_;
  Nanoseconds took_{0}, lost_{0};  // since the last verdict
  Nanoseconds pause_{0};           // after it
};

/// One thread's waiting without sleep, as it is measured. Used by that thread.
class Spell {
 public:
  using Clock = SpareProcessors::Clock;
  using Nanoseconds = SpareProcessors::Nanoseconds;

  /// `ran`: for how long the calling thread has run so far.
  explicit Spell(SpareProcessors& spare, Nanoseconds (*ran)() = thread_time) : spare_(spare), ran_(ran) {}
  Spell(const Spell&) = delete;
  Spell& operator=(const Spell&) = delete;
  ~Spell() { stop(); }

  /// Whether to look again, and not to sleep. Called before each look, but for those of the first moment; another
  /// thread may run meanwhile.
  bool go_on(Clock::time_point now);
  /// The thread is about to sleep, or has what it waited for.
  void stop();

 private:
  static Nanoseconds thread_time();
  void measure(Clock::time_point now);

  SpareProcessors& spare_;
  Nanoseconds (*const ran_)();
  bool measuring_ = false;
  Clock::time_point since_{};
  Nanoseconds ran_then_{0};
};

}  // namespace fargpu
