#pragma once
// Where the worker shares memory: pinned memory of both, through which large copies from and to all other memory of the
// program go. This process copies into it or out of it, with several threads, while the GPU's copy of the part before
// is under way.

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "copy_threads.h"

namespace fargpu::client {

class Calls;
class HostMemory;
class Thread;
struct Context;
struct Stream;

/// Threads: any.
class SharedStaging {
 public:
  static constexpr std::uint64_t slot_bytes = 4u << 20;
  static constexpr std::size_t slots = 8;
  static constexpr std::uint64_t gains_bytes = 512u << 10;  ///< smaller copies go with the frames

  SharedStaging(Calls& calls, HostMemory& host_memory) : calls_(calls), host_memory_(host_memory) {}

  /// A part of the memory: free again when its last holder lets go, which the GPU does by a fence.
  class Slot;
  /// One that is free in the context's memory, made when it is first needed. Waits for one if `wait` says so, while the
  /// stream has some itself: another stream may stand still until this one goes on. Null if there is none.
  std::shared_ptr<Slot> take(Thread& thread, Context& context, const Stream& stream, bool wait);

  /// How a copy of so many bytes is cut: so that its parts overlap.
  static std::uint64_t part_bytes(std::uint64_t bytes);
  void copy(void* to, const void* from, std::size_t bytes) { threads_.copy(to, from, bytes); }

  /// The context is gone, and its memory at the worker.
  void context_closed(const Context& context);

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_of(Thread& thread, Context& context);

  Calls& calls_;
  HostMemory& host_memory_;
  CopyThreads threads_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Memory>> memories_;
};

class SharedStaging::Slot {
 public:
  Slot(std::shared_ptr<Memory> memory, std::size_t number);
  ~Slot();
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  std::uint64_t address() const;
  void* data() const { return reinterpret_cast<void*>(address()); }

  std::atomic<bool> passed{false};  ///< the GPU is done with it

 private:
  const std::shared_ptr<Memory> memory_;
  const std::size_t number_;
};

}  // namespace fargpu::client
