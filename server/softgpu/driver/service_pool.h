#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace fargpu::softgpu {

/// Host threads for work other than kernels: copies and the program's host functions. Work may
/// block for long; then others' work goes to further threads, up to a bound. Never destroyed,
/// because work may still run at exit.
class ServicePool {
 public:
  static ServicePool& instance();
  void post(std::function<void()> work);

 private:
  static constexpr size_t threads_max = 256;
  void run();

  std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<std::function<void()>> queue_;
  size_t thread_count_ = 0;
  size_t idle_count_ = 0;
};

/// Looks at conditions on memory that the host or kernels change, until they hold.
class Poller {
 public:
  static Poller& instance();
  /// `is_met` is called again and again on a thread of the poller; once it gives true, `then` is.
  void watch(std::function<bool()> is_met, std::function<void()> then);

 private:
  struct Watch {
    std::function<bool()> is_met;
    std::function<void()> then;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable has_watches_;
  std::deque<Watch> watches_;
  bool is_started_ = false;
};

}  // namespace fargpu::softgpu
