#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/cluster.h"
#include "exec/fault.h"
#include "exec/launch.h"

namespace fargpu::softgpu {

/// A grid that is being executed.
class Grid {
 public:
  /// `on_complete` is called once, on some thread, when no thread of the grid runs any more.
  Grid(Launch launch, uint64_t resident_clusters_max, std::function<void(const Fault&)> on_complete);

  const Launch& launch() const { return launch_; }

 private:
  friend class Executor;

  bool can_start() const;
  bool has_work() const { return !is_stopped_ && (can_start() || !suspended_.empty()); }
  bool is_over() const;
  std::string describe_progress(std::chrono::seconds age) const;

  struct Suspended {
    std::unique_ptr<Cluster> cluster;
    bool was_spinning;
  };

  const Launch launch_;
  const uint64_t cluster_count_;
  const uint64_t resident_max_;
  const std::chrono::steady_clock::time_point began_;
  std::function<void(const Fault&)> on_complete_;

  // Taken without the lock by a host thread that runs one cluster after the other.
  std::atomic<uint64_t> next_cluster_{0};
  std::atomic<uint64_t> finished_{0};
  std::atomic<bool> is_stopped_{false};
  std::atomic<unsigned> times_reported_{0};

  // Under the executor's lock.
  std::deque<Suspended> suspended_;
  std::vector<std::unique_ptr<Cluster>> idle_;
  uint32_t workers_ = 0;
  uint32_t spinning_ = 0;  // of the suspended ones
  Fault fault_;
};

/// Executes grids on a fixed set of host threads. Grids share the threads, and blocks that take
/// long or wait for others give way to the rest, so any number of blocks, up to what the device
/// holds at a time, makes progress.
class Executor {
 public:
  /// The executor of the process. It is never destroyed: kernels may still run at exit.
  static Executor& instance();

  void submit(std::shared_ptr<Grid> grid);

 private:
  Executor(unsigned thread_count, std::chrono::seconds patience) : thread_count_(thread_count), patience_(patience) {}
  void work();
  void report_if_slow(Grid& grid);
  std::shared_ptr<Grid> choose();
  std::unique_ptr<Cluster> take_cluster(Grid& grid, bool& is_fresh);
  /// Runs the cluster, and fresh ones after it, until the time is over. False at the end of the
  /// grid's supply, with the cluster idle.
  bool run_for_a_while(Grid& grid, std::unique_ptr<Cluster>& cluster, bool is_fresh, Block::Outcome& outcome);

  const unsigned thread_count_;
  const std::chrono::seconds patience_;
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::vector<std::shared_ptr<Grid>> grids_;
  bool is_started_ = false;
};

}  // namespace fargpu::softgpu
