#pragma once
// Threads that give kernels to the driver, so that the executor reads on meanwhile.

#include <cuda.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/worker/code/arguments.h"
#include "server/worker/call/call.h"
#include "server/worker/order/completions.h"
#include "driver_table.h"
#include "protocol/channel.h"
#include "server/worker/objects/streams.h"

namespace fargpu::server {

/// What the driver needs for a plain launch of which nobody awaits the answer; or an event to be recorded.
struct Launch {
  CallId id;
  CUcontext context = nullptr;
  CUfunction function = nullptr;  ///< null for an event
  CUevent event = nullptr;
  std::shared_ptr<std::atomic<CUresult>> recorded;  ///< gets what became of that
  std::array<unsigned, 3> grid{};
  std::array<unsigned, 3> block{};
  unsigned shared_bytes = 0;
  CUstream stream = nullptr;
  Arguments arguments;
};

/// A launch costs the driver several times what reading the call costs, and launches on different streams may be made
/// at once. Those of one stream go to one thread, so they stay in their order; whatever else concerns a stream must
/// wait for what it was given here. Used by the executor only. Threads are started when there is work for them.
class LaunchCrew {
 public:
  /// `prepare` runs first on each thread; `waker` tells the executor that a launch has failed.
  LaunchCrew(DriverTable& driver, unsigned threads, Waker& waker, std::function<void()> prepare);
  ~LaunchCrew();
  LaunchCrew(const LaunchCrew&) = delete;
  LaunchCrew& operator=(const LaunchCrew&) = delete;

  unsigned size() const { return static_cast<unsigned>(members_.size()); }
  /// Whether launches are under way: on a stream, or on any.
  bool busy(const StreamState& stream) const { return size() > 0 && !member(stream).idle(); }
  bool busy() const;

  /// The place of the next launch on a stream, to be filled and then given; waits while the member has as many as it
  /// may.
  Launch& next(const StreamState& stream) { return member(stream).next(); }
  void give(const StreamState& stream) { member(stream).give(prepare_); }

  /// Records an event behind what the stream was given.
  Completions::Recorded record(const StreamState& stream, CUevent event);

  /// Waits until the driver has what was given on the stream; on the legacy one, which others are ordered with, on all.
  void wait_for(const StreamState& stream);
  void wait_for_all();

  /// Calls failed(id, result) for launches that the driver refused. Returns whether there were any.
  template <class Failed>
  bool collect(Failed&& failed) {
    if (!any_failed_.exchange(false, std::memory_order_acquire)) return false;
    std::vector<std::pair<CallId, CUresult>> list;
    {
      const std::lock_guard lock(failed_mutex_);
      list.swap(failed_);
    }
    for (const auto& [id, result] : list) failed(id, result);
    return !list.empty();
  }

 private:
  class Member {
   public:
    explicit Member(LaunchCrew& crew) : crew_(crew) {}
    ~Member();
    bool idle() const { return done_.load(std::memory_order_acquire) == given_.load(std::memory_order_relaxed); }
    Launch& next();
    void give(const std::function<void()>& prepare);
    void wait();

   private:
    static constexpr std::uint32_t waiting_max = 64;
    void loop();
    CUresult make(Launch& launch);
    void wait_for(std::uint32_t done);

    LaunchCrew& crew_;
    std::array<Launch, waiting_max> ring_;
    alignas(64) std::atomic<std::uint32_t> given_{0};
    alignas(64) std::atomic<std::uint32_t> done_{0};
    std::atomic<bool> stopping_{false};
    CUcontext current_ = nullptr;  // of the thread
    std::thread thread_;
  };

  Member& member(const StreamState& stream) { return *members_[stream.number % members_.size()]; }
  const Member& member(const StreamState& stream) const { return *members_[stream.number % members_.size()]; }
  void fail(const CallId& id, CUresult result);

  DriverTable& driver_;
  Waker& waker_;
  const std::function<void()> prepare_;
  std::mutex failed_mutex_;
  std::vector<std::pair<CallId, CUresult>> failed_;
  std::atomic<bool> any_failed_{false};
  std::vector<std::unique_ptr<Member>> members_;  // last: their threads use the rest
};

}  // namespace fargpu::server
