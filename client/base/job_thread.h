#pragma once
// A thread of the library's own for what must not hold up others.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace fargpu::client {

/// Does jobs one after the other, on a thread that is started for the first one and ends with the process. Threads: any.
class JobThread {
 public:
  /// The name is for debuggers (15 characters).
  explicit JobThread(const char* name) : name_(name) {}

  void run(std::function<void()> job);
  /// Starts the thread before there is a job.
  void start();

 private:
  void start_locked();
  void loop();

  const char* const name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool started_ = false;
};

}  // namespace fargpu::client
