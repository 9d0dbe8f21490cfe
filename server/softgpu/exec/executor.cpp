#include "exec/executor.h"

#include <immintrin.h>
#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "common/log.h"

namespace fargpu::softgpu {
namespace {

// How long a host thread stays with one grid before it looks around.
constexpr auto turn_time = std::chrono::milliseconds(4);
// Pause when every block there is only waits for memory to change.
constexpr auto spinning_pause = std::chrono::microseconds(20);

unsigned configured(const char* name, unsigned otherwise) {
  unsigned wanted = 0;
  if (const char* text = std::getenv(name)) std::from_chars(text, text + std::strlen(text), wanted);
  return wanted != 0 ? wanted : otherwise;
}

unsigned configured_thread_count() {
  unsigned count = std::max(1u, std::thread::hardware_concurrency());
  return std::min(configured("FARGPU_SOFTGPU_THREADS", count), 1024u);
}

std::chrono::seconds configured_patience() { return std::chrono::seconds(configured("FARGPU_SOFTGPU_PATIENCE", 10)); }

}  // namespace

Grid::Grid(Launch launch, uint64_t resident_clusters_max, std::function<void(const Fault&)> on_complete)
    : launch_(std::move(launch)),
      cluster_count_(launch_.grid.count() / launch_.cluster.count()),
      resident_max_(std::max<uint64_t>(1, resident_clusters_max)),
      began_(std::chrono::steady_clock::now()),
      on_complete_(std::move(on_complete)) {}

bool Grid::can_start() const {
  return next_cluster_.load(std::memory_order_relaxed) < cluster_count_ && suspended_.size() + workers_ < resident_max_;
}

bool Grid::is_over() const { return workers_ == 0 && (is_stopped_ || finished_ == cluster_count_); }

std::string Grid::describe_progress(std::chrono::seconds age) const {
  uint64_t done = finished_;
  std::string text = "kernel " + launch_.kernel->name + " has run for " + std::to_string(age.count()) + " s; " +
                     std::to_string(done) + " of its " + std::to_string(cluster_count_) +
                     (launch_.cluster.count() == 1 ? " blocks" : " clusters") + " are done";
  if (done != 0) {
    double left = static_cast<double>(age.count()) / static_cast<double>(done) *
                  static_cast<double>(cluster_count_ - std::min(done, cluster_count_));
    text += ", and it may need " + std::to_string(static_cast<uint64_t>(left)) + " s more";
  }
  return text;
}

Executor& Executor::instance() {
  static auto* executor = new Executor(configured_thread_count(), configured_patience());
  return *executor;
}

/// Says that a grid takes long: after the time of patience, and whenever that has grown fourfold.
void Executor::report_if_slow(Grid& grid) {
  auto age = std::chrono::steady_clock::now() - grid.began_;
  unsigned said = grid.times_reported_;
  if (age < patience_ * (1u << std::min(2 * said, 30u))) return;
  if (!grid.times_reported_.compare_exchange_strong(said, said + 1)) return;
  log_line(grid.describe_progress(std::chrono::duration_cast<std::chrono::seconds>(age)) +
           ". The software GPU computes on the CPU, here with " + std::to_string(thread_count_) +
           " threads: a smaller problem may serve as well");
}

void Executor::submit(std::shared_ptr<Grid> grid) {
  std::lock_guard lock(mutex_);
  grids_.push_back(std::move(grid));
  if (!is_started_) {
    is_started_ = true;
    for (unsigned i = 0; i < thread_count_; ++i) {
      std::thread thread([this] { work(); });
      pthread_setname_np(thread.native_handle(), "softgpu-exec");
      thread.detach();
    }
  }
  has_work_.notify_all();
}

/// The grid that the fewest threads work on; grids take turns among equals.
std::shared_ptr<Grid> Executor::choose() {
  auto found = grids_.end();
  for (auto it = grids_.begin(); it != grids_.end(); ++it)
    if ((*it)->has_work() && (found == grids_.end() || (*it)->workers_ < (*found)->workers_)) found = it;
  if (found == grids_.end()) return nullptr;
  std::shared_ptr<Grid> chosen = *found;
  std::rotate(found, found + 1, grids_.end());
  return chosen;
}

std::unique_ptr<Cluster> Executor::take_cluster(Grid& grid, bool& is_fresh) {
  // Blocks of a cooperative launch must all be there; and blocks that wait, mostly do so for one
  // that was not started yet. Otherwise what was begun goes on first.
  bool prefers_new = grid.launch_.is_cooperative || grid.spinning_ != 0 || grid.suspended_.empty();
  is_fresh = prefers_new && grid.can_start();
  if (!is_fresh && !grid.suspended_.empty()) {
    Grid::Suspended next = std::move(grid.suspended_.front());
    grid.suspended_.pop_front();
    grid.spinning_ -= next.was_spinning;
    return std::move(next.cluster);
  }
  is_fresh = true;
  if (grid.idle_.empty()) return nullptr;  // to be made outside the lock
  std::unique_ptr<Cluster> idle = std::move(grid.idle_.back());
  grid.idle_.pop_back();
  return idle;
}

bool Executor::run_for_a_while(Grid& grid, std::unique_ptr<Cluster>& cluster, bool is_fresh, Block::Outcome& outcome) {
  auto deadline = std::chrono::steady_clock::now() + turn_time;
  if (cluster == nullptr) cluster = std::make_unique<Cluster>(grid.launch_);
  while (true) {
    if (is_fresh) {
      uint64_t index = grid.next_cluster_.fetch_add(1);
      if (index >= grid.cluster_count_ || grid.is_stopped_) return false;
      cluster->start(index);
    }
    outcome = cluster->run(deadline);
    if (outcome != Block::Outcome::finished) return true;
    grid.finished_.fetch_add(1);
    if (std::chrono::steady_clock::now() >= deadline) return false;
    is_fresh = true;
  }
}

void Executor::work() {
  // Threads inherit the rounding and flushing of the thread that made them.
  _mm_setcsr(0x1f80);
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<Grid> grid = choose();
    if (grid == nullptr) {
      has_work_.wait(lock);
      continue;
    }
    bool is_fresh = false;
    std::unique_ptr<Cluster> cluster = take_cluster(*grid, is_fresh);
    ++grid->workers_;
    lock.unlock();

    Block::Outcome outcome = Block::Outcome::finished;
    bool is_unfinished = run_for_a_while(*grid, cluster, is_fresh, outcome);
    report_if_slow(*grid);

    lock.lock();
    --grid->workers_;
    bool should_pause = false;
    if (!is_unfinished) {
      grid->idle_.push_back(std::move(cluster));
    } else if (outcome == Block::Outcome::faulted) {
      if (!grid->fault_) grid->fault_ = cluster->fault();
      grid->is_stopped_ = true;
    } else {
      bool was_spinning = outcome == Block::Outcome::spinning;
      grid->spinning_ += was_spinning;
      grid->suspended_.push_back({std::move(cluster), was_spinning});
      should_pause = grid->spinning_ == grid->suspended_.size() && !grid->can_start() && grids_.size() == 1 &&
                     grid->suspended_.size() <= thread_count_;
      has_work_.notify_one();
    }
    if (grid->is_over()) {
      auto found = std::find(grids_.begin(), grids_.end(), grid);
      if (found != grids_.end()) {
        grids_.erase(found);
        lock.unlock();
        grid->on_complete_(grid->fault_);
        grid.reset();
        lock.lock();
      }
    } else if (should_pause) {
      lock.unlock();
      std::this_thread::sleep_for(spinning_pause);
      lock.lock();
    }
  }
}

}  // namespace fargpu::softgpu
