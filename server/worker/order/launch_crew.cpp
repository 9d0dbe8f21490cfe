#include "launch_crew.h"

#include <chrono>

#include "protocol/handle.h"

namespace fargpu::server {
namespace {

using Clock = std::chrono::steady_clock;

/// For how long a thread without work looks for more before it sleeps. Waking it takes longer than a launch.
constexpr auto spin_time = std::chrono::microseconds(50);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Waits until `word` is no longer `old`, awake for a moment.
void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t old) {
  const auto end = Clock::now() + spin_time;
  do {
    for (int i = 0; i < 64; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      pause();
    }
  } while (Clock::now() < end);
  word.wait(old, std::memory_order_acquire);
}

}  // namespace

LaunchCrew::LaunchCrew(DriverTable& driver, unsigned threads, Waker& waker, std::function<void()> prepare)
    : driver_(driver), waker_(waker), prepare_(std::move(prepare)) {
  for (unsigned i = 0; i < threads; ++i) members_.push_back(std::make_unique<Member>(*this));
}

LaunchCrew::~LaunchCrew() = default;

bool LaunchCrew::busy() const {
  for (const auto& member : members_)
    if (!member->idle()) return true;
  return false;
}

void LaunchCrew::wait_for(const StreamState& stream) {
  if (stream.handle == legacy_stream) wait_for_all();
  else if (size() > 0) member(stream).wait();
}

void LaunchCrew::wait_for_all() {
  for (const auto& member : members_) member->wait();
}

Completions::Recorded LaunchCrew::record(const StreamState& stream, CUevent event) {
  if (!busy(stream) || stream.handle == legacy_stream) {
    wait_for(stream);
    return {driver_.cuEventRecord(event, stream.cuda), nullptr};
  }
  auto recorded = std::make_shared<std::atomic<CUresult>>(CUDA_ERROR_NOT_READY);
  Launch& launch = next(stream);
  launch.context = stream.context->cuda;
  launch.function = nullptr;
  launch.event = event;
  launch.recorded = recorded;
  launch.stream = stream.cuda;
  give(stream);
  return {CUDA_SUCCESS, std::move(recorded)};
}

void LaunchCrew::fail(const CallId& id, CUresult result) {
  {
    const std::lock_guard lock(failed_mutex_);
    failed_.emplace_back(id, result);
  }
  any_failed_.store(true, std::memory_order_release);
  waker_.signal();
}

LaunchCrew::Member::~Member() {
  if (!thread_.joinable()) return;
  wait();
  stopping_ = true;
  given_.fetch_add(1, std::memory_order_release);
  given_.notify_one();
  thread_.join();
}

void LaunchCrew::Member::wait_for(std::uint32_t done) {
  // Counts run around; what is under way is little.
  for (std::uint32_t now = done_.load(std::memory_order_acquire); static_cast<std::int32_t>(now - done) < 0;
       now = done_.load(std::memory_order_acquire))
    wait_for_change(done_, now);
}

void LaunchCrew::Member::wait() { wait_for(given_.load(std::memory_order_relaxed)); }

Launch& LaunchCrew::Member::next() {
  const std::uint32_t given = given_.load(std::memory_order_relaxed);
  wait_for(given - (waiting_max - 1));
  return ring_[given % waiting_max];
}

void LaunchCrew::Member::give(const std::function<void()>& prepare) {
  if (!thread_.joinable()) {
    thread_ = std::thread([this, &prepare] {
      prepare();
      loop();
    });
  }
  given_.fetch_add(1, std::memory_order_release);
  given_.notify_one();
}

CUresult LaunchCrew::Member::make(Launch& launch) {
  DriverTable& driver = crew_.driver_;
  if (launch.context != current_) {
    const CUresult result = driver.cuCtxSetCurrent(launch.context);
    current_ = result == CUDA_SUCCESS ? launch.context : nullptr;
    if (result != CUDA_SUCCESS) return result;
  }
  if (!launch.function) return driver.cuEventRecord(launch.event, launch.stream);
  return driver.cuLaunchKernel(launch.function, launch.grid[0], launch.grid[1], launch.grid[2], launch.block[0],
                               launch.block[1], launch.block[2], launch.shared_bytes, launch.stream,
                               launch.arguments.pointers(), nullptr);
}

void LaunchCrew::Member::loop() {
  for (std::uint32_t done = 0;; ++done) {
    while (given_.load(std::memory_order_acquire) == done) wait_for_change(given_, done);
    if (stopping_) return;
    Launch& launch = ring_[done % waiting_max];
    const CUresult result = make(launch);
    if (launch.recorded) std::exchange(launch.recorded, nullptr)->store(result, std::memory_order_release);
    else if (result != CUDA_SUCCESS) crew_.fail(launch.id, result);
    done_.store(done + 1, std::memory_order_release);
    done_.notify_one();
  }
}

}  // namespace fargpu::server
