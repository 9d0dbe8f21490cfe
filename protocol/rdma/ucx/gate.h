#pragma once
// A process may end while threads of it use UCX, whose libraries then take down what these threads are using: that
// ended programs by SIGABRT or SIGSEGV. So each call of UCX goes through a gate, and none opens once the process ends.

#include <atomic>
#include <chrono>

namespace fargpu::rdma {

class Gate {
 public:
  bool enter() noexcept {
    inside_.fetch_add(1);
    if (!closed_.load()) return true;
    inside_.fetch_sub(1);
    return false;
  }
  void leave() noexcept { inside_.fetch_sub(1); }

  /// All gates, for good.
  static void close_all() noexcept { closed_ = true; }
  /// Whether nobody is inside any more, at that time at the latest.
  bool is_empty_by(std::chrono::steady_clock::time_point deadline) const noexcept;

 private:
  static inline std::atomic<bool> closed_{false};
  std::atomic<int> inside_{0};
};

/// A thread that uses UCX; false if it must not.
class Inside {
 public:
  explicit Inside(Gate& gate) noexcept : gate_(gate), entered_(gate.enter()) {}
  ~Inside() {
    if (entered_) gate_.leave();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  explicit operator bool() const noexcept { return entered_; }

 private:
  Gate& gate_;
  const bool entered_;
};

}  // namespace fargpu::rdma
