#pragma once
// Copying within this process faster than one thread can.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>

namespace fargpu::client {

/// Threads that help with large copies: started by the first, asleep when there is none. They never end, and nor may
/// this. Threads: any; what a second one wants meanwhile it copies alone.
class CopyThreads {
 public:
  /// Helpers for the processors that there are: none where there are few.
  CopyThreads();
  explicit CopyThreads(unsigned helpers) : helpers_(helpers) {}

  void copy(void* to, const void* from, std::size_t bytes);

 private:
  struct Job;
  void help();
  void begin(const std::shared_ptr<Job>& job);

  const unsigned helpers_;
  std::mutex user_;
  bool started_ = false;  // under user_
  std::mutex mutex_;
  std::condition_variable begun_;
  std::shared_ptr<Job> job_;             // the last one
  std::atomic<unsigned> jobs_begun_{0};  // changes under mutex_
};

}  // namespace fargpu::client
