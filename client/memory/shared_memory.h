#pragma once
// Memory of this process that others may open, and memory of others that this one has opened.

#include <cuda.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "shared_handle.h"

namespace fargpu::client {

class Calls;
class Contexts;
class DeviceMemory;
class GraphMemory;
class MemoryMap;
class Settler;
class Thread;
struct Context;
struct Facts;

/// Threads: any.
class SharedMemory {
 public:
  struct Parts {
    Calls& calls;
    const Facts& facts;
    Contexts& contexts;
    Settler& waits;
    MemoryMap& map;
    DeviceMemory& device_memory;
    const GraphMemory& graph_memory;
  };
  explicit SharedMemory(const Parts& parts) : parts_(parts) {}

  /// A handle of the allocation that holds this address: of cuMemAlloc, or of a pool that may be shared.
  CUresult share(Thread& thread, std::uint64_t address, bool of_pool, SharedHandle& handle);
  /// Memory of another process at an address of ours. The same memory opened again in the same context has the same
  /// address, until it is closed as often. `pool`: that it was imported by; null for cuIpcOpenMemHandle.
  CUresult open(Thread& thread, Context& context, const SharedHandle& handle, CUmemoryPool pool,
                std::uint64_t& address);
  CUresult close(Thread& thread, std::uint64_t address, bool of_pool);
  /// Whether memory was opened here that a pool imported: cuMemFree closes it.
  bool imported(std::uint64_t address) const;
  /// Another process may see memory of this one, and hear from the program when to look.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  void note(Thread& thread);
  /// The context is gone, and with it what was opened in it and is its own in the map.
  void context_closed(Thread& thread, Context& context);

 private:
  struct Opened {  // a piece of memory, in which lie one or more allocations that were opened
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    int device = 0;
    std::map<std::uint64_t, unsigned> allocations;  // how often, by address
    unsigned closing = 0;                           // calls that wait for the last use of one, without the lock
  };
  CUresult settle(Thread& thread, Context* context);
  void release(Thread& thread, const Opened& opened);
  using Pieces = std::map<std::pair<ShareKey, const Context*>, Opened>;
  void release_unused(Thread& thread, Pieces::iterator opened);

  const Parts parts_;
  std::mutex mutex_;  // held over calls to the worker, but for waits for the GPU: nothing that answers them needs it
  std::mutex settling_;
  std::atomic<bool> any_{false}, settled_{false};
  std::set<ShareKey> ours_;
  Pieces opened_;
};

}  // namespace fargpu::client
