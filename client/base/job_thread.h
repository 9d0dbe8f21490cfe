#pragma once
// A thread of the library's own for what must not hold up others.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace fargpu::client {

/// Does jobs one after the other, on a thread that is started for the first one and ends with the process. Threads:
/// any.
class JobThread {
 public:
  /// Where the thread waits for its next job, if it has a better place than sleeping: where it may meet the job itself.
  struct Lookout {
    /// Waits until `job`, or until there is nothing to look out for: then false, and the thread sleeps.
    std::function<bool(const std::function<bool()>& job)> wait;
    /// Another thread has a job: ends the waiting.
    std::function<void()> wake;
  };

  /// Hears why a job could not be done that threw, on the thread; most often there was no memory.
  using Failed = std::function<void(const char* why)>;

  /// The name is for debuggers (15 characters).
  explicit JobThread(const char* name, Lookout lookout = {}, Failed failed = {})
      : name_(name), lookout_(std::move(lookout)), failed_(std::move(failed)) {}

  void run(std::function<void()> job);
  /// Starts the thread before there is a job. If it sleeps it goes back to its lookout.
  void start();

 private:
  void start_locked();
  void loop();
  std::function<void()> next();

  const char* const name_;
  const Lookout lookout_;
  const Failed failed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::atomic<bool> any_{false};  // jobs
  bool started_ = false;
  bool asleep_ = false;
  bool sent_back_ = false;  // to the lookout
  std::thread::id on_lookout_;
};

}  // namespace fargpu::client
