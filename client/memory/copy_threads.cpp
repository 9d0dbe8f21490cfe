#include "copy_threads.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "client/base/threads.h"

namespace fargpu::client {
namespace {

constexpr std::size_t piece_bytes = 256u << 10;
constexpr auto awake = std::chrono::microseconds(100);  // after a job: the next part of a large copy comes soon

}  // namespace

/// Lives as long as anybody looks at it: a helper that is late finds nothing left to do.
struct CopyThreads::Job {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
  std::size_t pieces;
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> done{0};

  void work() {
    for (std::size_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
      const std::size_t begin = piece * piece_bytes;
      std::memcpy(to + begin, from + begin, std::min(piece_bytes, bytes - begin));
      done.fetch_add(1, std::memory_order_release);
    }
  }
};

// Half of the processors; more than these few do not make memory faster.
CopyThreads::CopyThreads() : helpers_(std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u) - 1) {}

void CopyThreads::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;  // either may be null then
  const std::unique_lock user(user_, std::try_to_lock);
  if (bytes <= piece_bytes || !user || helpers_ == 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  const auto job = std::make_shared<Job>();
  job->to = static_cast<std::byte*>(to);
  job->from = static_cast<const std::byte*>(from);
  job->bytes = bytes;
  job->pieces = (bytes + piece_bytes - 1) / piece_bytes;
  begin(job);
  job->work();
  while (job->done.load(std::memory_order_acquire) < job->pieces)
    std::this_thread::yield();  // a piece takes some microseconds
}

void CopyThreads::begin(const std::shared_ptr<Job>& job) {
  {
    const std::lock_guard lock(mutex_);
    job_ = job;
    jobs_begun_.fetch_add(1, std::memory_order_relaxed);
  }
  begun_.notify_all();
  if (std::exchange(started_, true)) return;
  try {
    for (unsigned i = 0; i < helpers_; ++i) start_thread("fargpu-copy", [this] { help(); });
  } catch (const std::exception&) {  // those that did start help; the copy is under way
  }
}

void CopyThreads::help() {
  using Clock = std::chrono::steady_clock;
  unsigned seen = 0;
  auto sleep_at = Clock::now() + awake;
  while (true) {
    if (jobs_begun_.load(std::memory_order_relaxed) == seen && Clock::now() < sleep_at) continue;
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      begun_.wait(lock, [&] { return jobs_begun_.load(std::memory_order_relaxed) != seen; });
      seen = jobs_begun_.load(std::memory_order_relaxed);
      job = job_;
    }
    job->work();
    sleep_at = Clock::now() + awake;
  }
}

}  // namespace fargpu::client
