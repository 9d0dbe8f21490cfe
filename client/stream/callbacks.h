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

  /// Remembers a function; returns its number. It runs once. `always`: it runs also if its stream never reaches it,
  /// with the error.
  std::uint64_t add(Function function, bool always = false);
  /// Remembers something that is not the program's, and is over when close() says so: `reached` runs, quickly, on the
  /// thread that receives the news.
  std::uint64_t open(std::function<void()> reached);
  void close(std::uint64_t number);
  /// Forgets a function that could not be given to its stream. False if it is not known any more, because it runs with
  /// the error of a lost session.
  bool remove(std::uint64_t number);
  /// A number for what the worker calls in the same way but does not run here.
  std::uint64_t take_number() {
    const std::lock_guard lock(mutex_);
    return next_++;
  }
  /// Whether any function is registered of whose end the worker has not been told.
  bool any_waiting() const { return waiting_.load() > 0; }
  /// The stream has got there. Ignored for numbers that are not (or no longer) known.
  void due(std::uint64_t number, CUresult stream_result);
  /// Runs a function of a graph now, and tells the worker, which gave the call this number.
  void call(std::uint64_t number, std::function<void()> function);
  /// The worker skips this function. One that runs always gets the error, and the worker hears of no end; another one
  /// is forgotten.
  void skip(std::uint64_t number, CUresult error);
  /// The session is lost, and the worker calls no more. `tells` is false where the program has ended: none of its
  /// functions may run.
  void lost(CUresult error, bool tells);
  /// Where they run.
  JobThread& thread() { return thread_; }

 private:
  struct Entry {
    Function function;
    bool always = false;
  };
  using Functions = std::map<std::uint64_t, Entry>;

  void skip(Functions::iterator found, CUresult error, bool tells = true);
  template <class Act>
  static void run(Act&& act);

  const std::function<void()> due_;
  const std::function<void(std::uint64_t)> done_;
  JobThread thread_;
  std::mutex mutex_;
  Functions functions_;
  std::map<std::uint64_t, std::function<void()>> open_;
  std::uint64_t next_ = 1;
  std::atomic<unsigned> waiting_{0};
};

}  // namespace fargpu::client
