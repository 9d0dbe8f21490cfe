#pragma once
// Streams that wait for values in memory (cuStreamWaitValue).

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "memory_operation.h"

namespace fargpu::client {

struct Context;

/// A value in memory of the GPU is waited for by the GPU. One in memory of the host is waited for here, by a thread of
/// its own: the worker asks for it like for a host function when the stream gets there, so that nothing given to the
/// GPU waits for this process, and all that the program wrote before the value goes ahead of what waited for it.
/// Threads: any.
class StreamWaits {
 public:
  /// `here` counts the waits on memory of the host that are not over; `done` tells the worker that one is.
  StreamWaits(std::atomic<unsigned>& here, std::function<void(std::uint64_t)> done)
      : done_(std::move(done)), here_(here) {}

  /// A wait on memory of the host, under a number that the worker will name, by a stream of this context.
  void add(std::uint64_t number, const MemoryOperation& wait, const Context& context);
  /// Forgets one that could not be asked for.
  void remove(std::uint64_t number);
  /// The stream has got there. False if the number is none of these.
  bool due(std::uint64_t number, CUresult stream_result);
  /// This memory goes: nobody looks at it any more.
  void forget(std::uint64_t base, std::uint64_t bytes);
  /// This context goes, and its streams, which are not waited for.
  void forget(const Context& context);

  /// A wait on memory of the GPU, from when it is submitted until the stream has passed it.
  void begun() { open_.fetch_add(1); }
  void passed() { open_.fetch_sub(1); }

  /// Whether any wait on memory of the host is not over.
  bool any_here() const { return here_.load() > 0; }
  /// Whether any stream may be waiting: until it is past that, the program may change what later work reads.
  bool any() const { return open_.load() > 0; }

 private:
  struct Wait {
    MemoryOperation operation;
    const Context* context = nullptr;
  };
  using Waits = std::map<std::uint64_t, Wait>;

  template <class Which>
  void end_those(Which&& which);
  std::vector<std::uint64_t> take_over();
  void watch();

  const std::function<void(std::uint64_t)> done_;
  // Held while looking at the program's memory, which may have to come from the worker first: the receiving thread
  // never takes it. Before mutex_.
  std::mutex looking_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Waits expected_;
  Waits due_;
  std::atomic<unsigned> open_{0};
  std::atomic<unsigned>& here_;  // of those
  bool started_ = false;
};

}  // namespace fargpu::client
