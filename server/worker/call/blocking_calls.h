#pragma once
// Driver calls that may take long (image loads, JIT, context creation) run beside the executor, so that they hold only
// the client thread that made them.

#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/channel.h"

namespace fargpu::server {

class BlockingCalls {
 public:
  using Work = std::function<void()>;  ///< on a thread of the pool
  using Done = std::function<void()>;  ///< on the executor, from collect()

  /// `waker` tells the executor that there is something to collect. `prepare` runs first on each of the threads, of
  /// which there are at most `threads_max`: with one, calls are made in their order.
  BlockingCalls(Waker& waker, std::function<void()> prepare, std::size_t threads_max = 8)
      : waker_(waker), prepare_(std::move(prepare)), threads_max_(threads_max) {}
  ~BlockingCalls();

  void run(Work work, Done done);
  /// Runs what is done. Returns whether anything was. Throws what work threw: for the want of memory, most likely, and
  /// the session's end.
  bool collect();
  bool idle() const { return under_way_ == 0; }
  /// How many were given and are not collected yet. For the executor.
  std::size_t under_way() const { return under_way_; }
  /// Until no thread is at work and none is to be: what was done is still to be collected.
  void wait_for_all();

 private:
  void loop();

  Waker& waker_;
  const std::function<void()> prepare_;
  const std::size_t threads_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable quiet_;
  // Lists, so that a piece of work goes from one to the next without memory, which the pool's threads could not do
  // without.
  using Jobs = std::list<std::pair<Work, Done>>;
  Jobs waiting_;
  Jobs finished_;
  std::exception_ptr failure_;  // what came out of work that should have kept it
  std::vector<std::thread> threads_;
  std::size_t busy_ = 0;
  bool stopping_ = false;
  std::size_t under_way_ = 0;  // executor's own count
};

}  // namespace fargpu::server
