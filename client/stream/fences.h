#pragma once
// Learning that the GPU is past a point in the order of calls, without waiting for it.

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace fargpu::client {

class Calls;
struct Context;
struct Stream;
class Thread;

class Fences {
 public:
  using Action = std::function<void()>;

  explicit Fences(Calls& calls) : calls_(calls) {}

  /// Runs `action`, on whichever thread receives the news, once everything given to the stream so far is complete.
  void after(Thread& thread, Stream& stream, Action action);
  /// Runs `action` when everything given to all streams of all contexts so far is complete.
  /// Requests without new work in between share one fence.
  void after_all(Thread& thread, Action action);

  /// The worker says that a fence was passed. Unknown numbers are ignored.
  void passed(std::uint64_t fence);

 private:
  void send(Thread& thread, std::uint64_t fence, Context* context, std::uint64_t stream);

  Calls& calls_;
  std::mutex mutex_;
  std::uint64_t next_ = 1;
  std::multimap<std::uint64_t, Action> waiting_;
  std::uint64_t last_all_ = 0;            // the newest fence over everything
  std::uint64_t last_all_submitted_ = 0;  // what had been submitted when it was asked for
};

}  // namespace fargpu::client
