#pragma once
// Threads that sleep in Channel::wait of one channel. What wakes the channel wakes one of them, which takes it and
// wakes the others.

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "channel.h"

namespace fargpu {

/// Threads: any.
class Sleepers {
 public:
  /// `none_left` is called when the last one has woken, before another can begin to sleep.
  explicit Sleepers(std::function<void()> none_left = {}) : none_left_(std::move(none_left)) {}

  /// One thread, from before it looks for the last time until it does not sleep any more.
  class Sleeper {
   public:
    /// `waker`: the thread's own; null if it has none.
    Sleeper(Sleepers& sleepers, Waker* waker);
    ~Sleeper();
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    Waker& waker() const { return *waker_; }

   private:
    Sleepers& sleepers_;
    Waker* waker_;
    std::unique_ptr<Waker> own_;
  };

  void wake(const Waker* except = nullptr);
  bool any() const;

 private:
  const std::function<void()> none_left_;
  mutable std::mutex mutex_;
  std::vector<Waker*> sleeping_;
  std::vector<std::unique_ptr<Waker>> spare_;
};

}  // namespace fargpu
