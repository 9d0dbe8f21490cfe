#pragma once
// Device memory of the session: addresses are chosen here, within the window; the worker puts physical memory behind
// them.

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "client/base/address_ranges.h"
#include "memory_pool.h"
#include "physical_memory.h"
#include "client/objects/thread.h"

namespace fargpu::client {

class Calls;
class Contexts;
class Fences;
class MemoryMap;
class Settler;
struct Context;
struct Facts;
struct Region;
struct Stream;

/// Small allocations are cut from arenas, large ones have an extent of their own. A freed block waits until the GPU has
/// passed everything submitted before, then its memory is used again; what exceeds `kept_bytes_max` goes back to the
/// device. Memory pools take memory from their device and give it back to it; within a pool, a block freed on a stream
/// is used again on that stream without waiting. Threads: any. Actions of fences run on the receiving thread and take
/// only this object's lock.
class DeviceMemory {
 public:
  /// The granularity of physical memory (cuMemGetAllocationGranularity on all GPUs)
  static constexpr std::uint64_t granularity = 2u << 20;
  static constexpr std::uint64_t small_bytes_max = 1u << 20;
  static constexpr std::uint64_t kept_bytes_max = 256u << 20;
  /// Of what nobody has asked for yet there is a quarter of what the device has given, within these.
  static constexpr std::uint64_t spare_bytes_min = 128u << 20;
  static constexpr std::uint64_t spare_bytes_max = 512u << 20;

  struct Parts {
    Calls& calls;
    const Facts& facts;
    Contexts& contexts;
    Settler& waits;
    Fences& fences;
    MemoryMap& map;
    std::function<void(std::uint64_t address)> managed_dropped;  ///< an allocation of managed memory goes
    /// A pool in host memory gives back what is above its threshold.
    std::function<void(Thread& thread, MemoryPool& pool)> trim_in_host;
    /// The last memory of a destroyed pool has come back. On any thread, also the receiving one; under the
    /// lock.
    std::function<void(std::shared_ptr<MemoryPool> pool)> pool_over;
  };
  DeviceMemory(Parts parts, std::uint64_t window_base, std::uint64_t window_bytes);

  /// Without a pool: as cuMemAlloc, on the context's device. With a stream: for use in its order.
  CUresult allocate(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& address,
                    const std::shared_ptr<MemoryPool>& pool = nullptr, const Stream* stream = nullptr);
  /// `address` must begin an allocation of ours. `noticed`: the host would notice work that is under way, and programs
  /// rely on cuMemFree as a wait for it.
  CUresult free(Thread& thread, std::uint64_t address, bool noticed) { return free(thread, address, nullptr, noticed); }
  /// In the stream's order.
  CUresult free(Thread& thread, std::uint64_t address, Stream& stream) {
    return free(thread, address, &stream, /*noticed=*/false);
  }
  /// Frees without any wait: memory that the GPU may still use is not given out again before the GPU has passed it.
  void discard(Thread& thread, std::uint64_t address);
  /// The context is gone, and with it the memory that is its own in the map; nothing runs any more.
  void context_closed(Thread& thread, Context& context);

  /// Asks for memory of a device. If there is none, what is kept for reuse there, or still waits for the GPU, may be
  /// what is missing: it is given back, and asked once more. `context`: of the call, if it has one.
  template <class Ask>
  CUresult with_room(Thread& thread, Context* context, int device, Ask&& ask) {
    if (const CUresult late = thread.take_late_error(); late != CUDA_SUCCESS) return late;
    // What an earlier call found no room for is not what this one asks for.
    const Thread::AnswersOnly answers_only(thread);
    const std::uint64_t reclaims = reclaims_.load();
    const CUresult result = ask();
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    const Shortage shortage(*this, device);
    const CUresult reclaimed = reclaim(thread, context, device, reclaims);
    return reclaimed == CUDA_SUCCESS ? ask() : reclaimed;
  }

  /// Calls of cuMemFree that have not waited for the GPU, where a driver's does: how many there were, and of how many
  /// the memory is free.
  std::uint64_t frees_begun() const {
    const std::lock_guard lock(mutex_);
    return frees_done_ + freeing_;
  }
  std::uint64_t frees_done() const {
    const std::lock_guard lock(mutex_);
    return frees_done_;
  }
  /// Whether the memory of some is not.
  bool frees_are_under_way() const {
    const std::lock_guard lock(mutex_);
    return freeing_ > 0;
  }

  /// Whether memory of a pool was freed on this stream, which has not got there yet.
  bool freed_on(const Stream& stream) const;

  /// Memory that is held for reuse on a device and that the program may therefore count as free.
  std::uint64_t kept_bytes(int device) const;

  MemoryPools& pools() { return pools_; }
  /// Has a pool give back unused memory while it has more than this (cuMemPoolTrimTo).
  void trim(Thread& thread, MemoryPool& pool, std::uint64_t keep_bytes);
  /// A pool may have more than its threshold: the next wait looks.
  void look_at_thresholds() { pools_above_threshold_ = true; }
  /// The program has waited for the GPU: pools give back what is above their threshold.
  void synchronized(Thread& thread);
  /// Whether nothing of a pool that was destroyed is in use any more.
  bool is_over(const MemoryPool& pool) const;
  PoolUsage usage(const MemoryPool& pool) const;
  void reset_high(MemoryPool& pool, bool reserved);

  /// The piece of memory in which a live allocation lies: base and bytes. From now on other processes see it: it is
  /// given up when what lies in it now has been freed, and used for nothing else.
  std::pair<std::uint64_t, std::uint64_t> share_piece(std::uint64_t address);

  /// cuMemCreate: memory without an address, maybe some that came with an earlier one.
  CUresult make(Thread& thread, const PhysicalMemory::Kind& kind, CUmemGenericAllocationHandle& allocation);
  /// One more hold on such memory (cuMemRetainAllocationHandle).
  void retained(CUmemGenericAllocationHandle allocation, const Region& mapping);
  /// In which forms the program may give it to other processes, as far as is known here.
  std::uint32_t handle_types(CUmemGenericAllocationHandle allocation) const;
  /// What the program holds by this handle, if nothing that is done with it can fail for the want of memory, as for the
  /// GPU's page tables. Of others only the worker can tell.
  std::optional<PhysicalMemory::Held> safe(CUmemGenericAllocationHandle allocation) const;
  /// cuMemRelease.
  CUresult release(Thread& thread, CUmemGenericAllocationHandle allocation);
  /// cuMemUnmap of a mapping that is in the map no more, and that nothing uses.
  void unmap(Thread& thread, const Region& mapping);
  /// What the worker has put behind a range goes; nothing uses it any more.
  void unmap(Thread& thread, std::uint64_t address, std::uint64_t bytes);

  /// Part of the window for cuMemAddressReserve.
  std::optional<std::uint64_t> reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wish);
  void unreserve(std::uint64_t address, std::uint64_t bytes);

 private:
  using Extent = MemoryStore::Extent;
  class Coming;
  /// Somebody needs what others would have without having asked for it.
  class Shortage {
   public:
    Shortage(DeviceMemory& memory, int device) : memory_(memory) {
      const std::lock_guard lock(memory_.mutex_);
      ++memory_.shortages_;
      memory_.scarce_.insert(device);
    }
    Shortage(const Shortage&) = delete;
    Shortage& operator=(const Shortage&) = delete;
    ~Shortage() {
      const std::lock_guard lock(memory_.mutex_);
      --memory_.shortages_;
    }

   private:
    DeviceMemory& memory_;
  };
  struct Block {  // what an allocation takes up
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::uint64_t arena = 0;           // 0: an extent of its own
    std::shared_ptr<MemoryPool> pool;  // null: the device's own store
    std::uint64_t asked_bytes = 0;     // by the program, of a pool
  };

  // Programs read the numbers of their own pools.
  static std::uint64_t reserved_of(const MemoryPool& pool) {
    return pool.hidden ? pool.store.bytes : pool.chunks.bytes();
  }
  MemoryStore& store_of(int device, MemoryPool* pool) { return pool ? pool->store : stores_[device]; }
  CUresult allocate_small(Thread& thread, Context& context, int device, MemoryPool* pool, std::uint64_t bytes,
                          Block& block);
  CUresult allocate_large(Thread& thread, Context& context, int device, MemoryPool* pool, std::uint64_t bytes,
                          Block& block);
  CUresult back(Thread& thread, Context& context, int device, MemoryPool* pool, Extent& extent);
  CUresult make_now(Thread& thread, const PhysicalMemory::Kind& kind, CUmemGenericAllocationHandle& allocation);
  /// How many pieces of this size are to come with the next one that the worker is asked for.
  std::uint32_t spares_for(int device, SpareMemory& memory, std::uint64_t bytes) const;
  bool take_freed(MemoryPool& pool, const Stream& stream, std::uint64_t bytes, Block& block);
  Block take_block(std::uint64_t address);
  CUresult free(Thread& thread, std::uint64_t address, Stream* stream, bool noticed);
  /// `waits`: see frees_begun.
  void free_block(Thread& thread, std::uint64_t address, int device, Stream* stream, bool waits);
  void give(int device, const Block& block);
  void doom(int device, MemoryStore& store, const Extent& extent);
  bool shared(const MemoryStore& store, std::uint64_t base, std::uint64_t arena) const;
  void give_later(Thread& thread, int device, const Block& block, Stream* stream, bool waits);
  void release(Thread& thread, int device, const std::vector<Extent>& extents);
  void release(Thread& thread, const std::vector<CUmemGenericAllocationHandle>& allocations);
  void release_surplus(Thread& thread, int device);
  void shrink(MemoryPool& pool, std::uint64_t keep_bytes);
  CUresult reclaim(Thread& thread, Context* context, int device, std::uint64_t reclaims_before);
  bool release_unused(Thread& thread, int device);

  const Parts parts_;
  mutable std::mutex mutex_;
  AddressRanges window_;
  std::map<int, MemoryStore> stores_;
  PhysicalMemory physical_;
  std::set<std::uint64_t> shared_;             // extents in use that other processes see
  std::map<int, std::vector<Extent>> doomed_;  // by device: to be given up with the next call that may send
  std::map<std::uint64_t, Block> blocks_;      // live allocations by address
  std::uint64_t waiting_ = 0;                  // freed blocks that the GPU has not passed yet
  std::uint64_t frees_done_ = 0;               // see frees_begun
  std::uint64_t freeing_ = 0;                  // of them, those of frees_begun
  std::map<int, std::uint64_t> freed_bytes_;   // by device: of them, what was freed after a wait for its context
  MemoryPools pools_;
  std::atomic<bool> pools_above_threshold_{false};
  unsigned sparing_ = 0;            // requests under way that spares come with
  std::condition_variable spared_;  // there are none
  unsigned shortages_ = 0;          // those that see to it that there is room
  std::set<int> scarce_;            // devices where there was none, and where the program has given nothing back since
  std::mutex reclaiming_;           // taken before mutex_, and while what is given back is sent
  std::atomic<std::uint64_t> reclaims_{0};  // that have given something back
};

}  // namespace fargpu::client
