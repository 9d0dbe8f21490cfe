#pragma once
// Memory pools in the memory of the host: stream-ordered allocations of pinned memory, which program and kernels reach
// at one address. CUDA Driver API, "Stream Ordered Memory Allocator".

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "memory_pool.h"

namespace fargpu::client {

class Calls;
class Contexts;
class DeviceMemory;
class Fences;
class HostMemory;
class JobThread;
class MemoryMap;
class Settler;
class Thread;
struct Context;
struct Stream;

/// Blocks of such pools. A freed one is used again, or given back, when its stream has got there. Threads: any.
class HostPools {
 public:
  struct Parts {
    Calls& calls;
    Contexts& contexts;
    Fences& fences;
    Settler& waits;
    MemoryMap& map;
    HostMemory& host_memory;
    DeviceMemory& device_memory;  ///< has waits look at thresholds
    JobThread& answers;           ///< gives memory back
  };
  explicit HostPools(const Parts& parts) : parts_(parts) {}

  CUresult allocate(Thread& thread, Context& context, const std::shared_ptr<MemoryPool>& pool, std::uint64_t bytes,
                    std::uint64_t& address);
  /// Whether such an allocation begins here.
  bool knows(std::uint64_t address) const;
  /// In the order of the stream; without one the call waits for everything, as the driver does.
  CUresult free(Thread& thread, std::uint64_t address, Stream* stream);
  /// Gives back unused memory while the pool has more than this.
  void trim(Thread& thread, MemoryPool& pool, std::uint64_t keep_bytes);
  PoolUsage usage(const MemoryPool& pool) const;
  void reset_high(MemoryPool& pool, bool reserved);
  /// The context is gone, and with it what was allocated in it.
  void context_closed(const Context& context);

 private:
  struct Block {
    std::shared_ptr<MemoryPool> pool;
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::uint64_t buffer_id = 0;
    Context* context = nullptr;
  };

  CUresult pin(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& base);
  std::optional<Block> take_kept(const MemoryPool& pool, const Context& context, std::uint64_t bytes);
  void passed(const Block& block);
  void give_back(Thread& thread, const std::vector<Block>& blocks);

  const Parts parts_;
  mutable std::mutex mutex_;               // of what follows, and of the pools' usage; never held while sending
  std::map<std::uint64_t, Block> blocks_;  // live allocations by address
  std::vector<Block> leaving_;             // freed, and the GPU may not have got there
  std::vector<Block> kept_;                // free, oldest first
};

}  // namespace fargpu::client
