#pragma once
// Memory pools of stream-ordered allocation. CUDA Driver API, "Stream Ordered Memory Allocator".

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/base/address_ranges.h"

namespace fargpu::client {

struct Context;

/// Memory of a device of which some is there before the program asks for it. Not synchronised.
struct SpareMemory {
  std::uint64_t bytes = 0;                  ///< all that there is, in use and kept
  std::uint64_t kept_bytes = 0;             ///< of that, what nobody uses
  std::uint64_t coming_bytes = 0;           ///< what the worker was asked for beyond what is needed now
  std::map<std::uint64_t, unsigned> asked;  ///< for how many pieces of a size the worker was asked
};

/// Backed memory that allocations are cut from: arenas, extents in use, extents kept. Not synchronised.
struct MemoryStore : SpareMemory {
  struct Extent {
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::uint64_t, AddressRanges> arenas;  ///< for small allocations, by base
  std::map<std::uint64_t, AddressRanges> sealed;  ///< arenas that other processes see: nothing more comes into them
  std::uint64_t next_arena_bytes = 0;
  std::list<Extent> kept;  ///< free extents, oldest first

  void keep(const Extent& extent);
  /// A kept extent of this size or a little more, taken out.
  std::optional<Extent> take_kept(std::uint64_t bytes);
  /// Takes out the oldest kept extent.
  std::optional<Extent> take_oldest();
  /// Makes kept extents of arenas that nobody uses: of all, or of all but one.
  void retire_arenas(bool all);
};

/// `device` of pools in the memory of the host.
inline constexpr int pool_of_host = -1;

/// What one of the driver's pools would have reserved for the same allocations, which programs read and reckon with: it
/// grows by chunks of 32 MiB, or larger for larger allocations, and gives back chunks that nobody uses (driver 580:
/// tests/answers/driver/numbers.*). Not synchronised.
class PoolChunks {
 public:
  std::uint64_t bytes() const { return bytes_; }
  void take(std::uint64_t base, std::uint64_t bytes);
  /// The GPU is past its last use.
  void give(std::uint64_t base);
  /// Gives unused chunks back, newest first, while at least so many bytes stay.
  void release(std::uint64_t keep_bytes);

 private:
  struct Chunk {
    std::uint64_t bytes = 0;
    std::uint64_t used = 0;
  };
  struct Allocation {
    std::list<Chunk>::iterator chunk;
    std::uint64_t bytes = 0;
  };
  std::list<Chunk> chunks_;
  std::map<std::uint64_t, Allocation> allocations_;  // by base
  std::uint64_t bytes_ = 0;
};

struct PoolUsage {
  std::uint64_t used = 0;
  std::uint64_t used_high = 0;
  std::uint64_t reserved = 0;
  std::uint64_t reserved_high = 0;
};

/// What a CUmemoryPool points to. Lives until it is destroyed and its last allocation is freed.
struct MemoryPool {
  CUmemPoolProps properties{};
  int device = 0;
  bool imported = false;                           ///< of another process: only for what that one shares
  bool managed = false;                            ///< what it gives is managed memory
  bool host = false;                               ///< what it gives is pinned memory (HostPools)
  bool hidden = false;                             ///< the program has no handle of it
  std::uint64_t alignment = 512;                   ///< of every allocation, as the driver's own
  std::array<std::atomic<int>, 3> reuse{1, 1, 1};  ///< CU_MEMPOOL_ATTR_REUSE_*: permissions that need not be used
  std::atomic<std::uint64_t> release_threshold{0};
  std::atomic<bool> destroyed{false};  ///< nothing is kept any more

  // What follows belongs to DeviceMemory and is under its lock.
  struct Freed {  // in the order of a stream that has not got there yet
    std::uint64_t serial = 0;
    const Context* context = nullptr;
    std::uint64_t stream = 0;
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::uint64_t arena = 0;
  };
  MemoryStore store;
  std::list<Freed> freed;
  std::uint64_t next_serial = 1;
  PoolUsage usage;
  PoolChunks chunks;

  CUmemoryPool cuda() { return reinterpret_cast<CUmemoryPool>(this); }
};

/// The program's pools. Threads: any.
class MemoryPools {
 public:
  std::shared_ptr<MemoryPool> create(const CUmemPoolProps& properties);
  /// Null for what is no pool, or no longer.
  std::shared_ptr<MemoryPool> find(CUmemoryPool pool) const;
  /// False for what is no pool, and for default pools.
  bool destroy(CUmemoryPool pool);

  /// The pools of a device, or of the host (`pool_of_host`).
  std::shared_ptr<MemoryPool> default_of(int device);
  std::shared_ptr<MemoryPool> current_of(int device);
  void set_current(int device, std::shared_ptr<MemoryPool> pool);
  /// Where managed memory of a device comes from, and memory of graphs.
  std::shared_ptr<MemoryPool> managed_of(int device);
  std::shared_ptr<MemoryPool> graph_of(int device);

  /// The program's and ours.
  std::vector<std::shared_ptr<MemoryPool>> all() const;

 private:
  std::shared_ptr<MemoryPool> default_locked(int device);

  mutable std::mutex mutex_;
  std::map<CUmemoryPool, std::shared_ptr<MemoryPool>> pools_;
  std::map<int, std::shared_ptr<MemoryPool>> defaults_;
  std::map<int, std::shared_ptr<MemoryPool>> currents_;
  std::map<int, std::shared_ptr<MemoryPool>> managed_;
  std::map<int, std::shared_ptr<MemoryPool>> graph_;
};

}  // namespace fargpu::client
