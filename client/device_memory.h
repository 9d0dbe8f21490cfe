#pragma once
// Device memory of the session: addresses are chosen here, within the window; the worker puts physical memory behind them.

#include <cuda.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "address_ranges.h"

namespace fargpu::client {

class Session;
class Thread;
struct Context;
struct Region;

/// Small allocations are cut from arenas, large ones have an extent of their own. A freed block waits until the GPU has passed
/// everything submitted before (design D6), then its memory is used again; what exceeds `kept_bytes_max` goes back to the device.
/// Threads: any. Actions of fences run on the receiving thread and take only this object's lock.
class DeviceMemory {
 public:
  static constexpr std::uint64_t granularity = 2u << 20;   ///< of physical memory (cuMemGetAllocationGranularity on all GPUs)
  static constexpr std::uint64_t small_bytes_max = 1u << 20;
  static constexpr std::uint64_t alignment = 512;          ///< of every allocation, as the driver's own
  static constexpr std::uint64_t kept_bytes_max = 256u << 20;

  DeviceMemory(Session& session, std::uint64_t window_base, std::uint64_t window_bytes);

  CUresult allocate(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& address);
  /// `address` must begin an allocation of ours. `wait`: as cuMemFree, which programs use to wait for results.
  CUresult free(Thread& thread, std::uint64_t address, bool wait);
  /// The context is gone, and with it what was allocated in it; nothing runs any more.
  void context_closed(Thread& thread, Context& context);

  /// Memory that is held for reuse on a device and that the program may therefore count as free.
  std::uint64_t kept_bytes(int device) const;

  /// Part of the window for cuMemAddressReserve.
  std::optional<std::uint64_t> reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wish);
  void unreserve(std::uint64_t address, std::uint64_t bytes);

 private:
  struct Extent {
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
  };
  struct Pool {
    std::map<std::uint64_t, AddressRanges> arenas;  // by base
    std::uint64_t next_arena_bytes = granularity;
    std::list<Extent> kept;  // free extents, oldest first
    std::uint64_t kept_bytes = 0;
  };
  struct Block {  // what an allocation takes up
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::uint64_t arena = 0;  // 0: an extent of its own
  };

  CUresult allocate_small(Thread& thread, Context& context, std::uint64_t bytes, Block& block);
  CUresult allocate_large(Thread& thread, Context& context, std::uint64_t bytes, Block& block);
  bool take_small(Pool& pool, std::uint64_t bytes, Block& block);
  CUresult back(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& base);
  void give(int device, const Block& block);
  std::vector<Extent> surplus(Pool& pool, std::uint64_t keep);
  void release(Thread& thread, const std::vector<Extent>& extents);
  bool reclaim(Thread& thread, Context& context);
  bool release_unused(Thread& thread, int device);

  Session& session_;
  mutable std::mutex mutex_;
  AddressRanges window_;
  std::map<int, Pool> pools_;
  std::map<std::uint64_t, Block> blocks_;  // live allocations by address
  std::uint64_t waiting_ = 0;              // freed blocks that the GPU has not passed yet
};

}  // namespace fargpu::client
