#pragma once
// Functions of the program that run when a stream gets to them (cuLaunchHostFunc, cuStreamAddCallback, host nodes of
// graphs).

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "client/base/job_thread.h"

namespace fargpu::client {

/// Runs them one after the other on a thread of its own, started when the first one is registered: a function may take
/// its time, or wait for other threads, without holding up anything but the work behind it. While it has none to run,
/// and some are registered, this thread reads the connection, so that it meets the next one itself. CUDA calls are not
/// allowed in functions.
class Callbacks {
 public:
  using Function = std::function<void(CUresult)>;

  /// `due` runs ahead of each function, on its thread; `done` tells the worker that a function has run; `lookout` is
  /// where the thread waits for the next one; `failed` hears why one could not be run.
  Callbacks(std::function<void()> due, std::function<void(std::uint64_t)> done, JobThread::Lookout lookout = {},
            JobThread::Failed failed = {})
      : due_(std::move(due)),
        done_(std::move(done)),
        thread_("fargpu-callback", std::move(lookout), std::move(failed)) {}

  /// Remembers a function; returns its number. It runs once.
  std::uint64_t add(Function function);
  /// Remembers something that is not the program's, and is over when close() says so: `reached` runs, quickly, on the
  /// thread that receives the news.
  std::uint64_t open(std::function<void()> reached);
  void close(std::uint64_t number);
  /// Forgets one whose call could not be made.
  void remove(std::uint64_t number);
  /// A number for what the worker calls in the same way but does not run here.
  std::uint64_t take_number() {
    const std::lock_guard lock(mutex_);
    return next_++;
  }
  /// Whether any function is registered that has not run to its end.
  bool any_waiting() const { return waiting_.load() > 0; }
  /// The stream has got there. Ignored for numbers that are not (or no longer) known.
  void due(std::uint64_t number, CUresult stream_result);
  /// Runs a function of a graph now, and tells the worker, which gave the call this number.
  void call(std::uint64_t number, std::function<void()> function);
  /// Where they run.
  JobThread& thread() { return thread_; }

 private:
  const std::function<void()> due_;
  const std::function<void(std::uint64_t)> done_;
  JobThread thread_;
  std::mutex mutex_;
  std::map<std::uint64_t, Function> functions_;
  std::map<std::uint64_t, std::function<void()>> open_;
  std::uint64_t next_ = 1;
  std::atomic<unsigned> waiting_{0};
};

}  // namespace fargpu::client
