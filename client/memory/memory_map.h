#pragma once
// What lies where: every range of device or pinned memory that the program knows, by address. Answers pointer
// attributes and decides the direction of copies without asking the worker.

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "client/base/writer_first_mutex.h"

namespace fargpu::client {

struct Context;

struct Region {
  enum class Kind {
    device,      ///< cuMemAlloc, cuMemAllocAsync
    managed,     ///< cuMemAllocManaged
    mapped,      ///< cuMemMap
    opened,      ///< cuIpcOpenMemHandle
    global,      ///< a variable of a module
    host,        ///< cuMemHostAlloc
    registered,  ///< cuMemHostRegister
    alias,       ///< where kernels see registered memory; `owner` is the memory's own address
  };
  Kind kind = Kind::device;
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  int device = 0;                    ///< ordinal as the program sees it
  Context* context = nullptr;        ///< that made it; null for mappings, and for pools' memory that outlasts it
  std::uint64_t buffer_id = 0;       ///< unique over the life of the process
  unsigned flags = 0;                ///< of host memory: CU_MEMHOSTALLOC_* or CU_MEMHOSTREGISTER_*
  std::uint64_t device_address = 0;  ///< of host memory: where kernels see it, 0 while they do not
  std::uint64_t owner = 0;           ///< of mappings: the allocation; of globals: the module or library
  CUmemoryPool pool = nullptr;       ///< of stream-ordered allocations
  unsigned handle_types = 0;         ///< of mappings and pools' memory: CUmemAllocationHandleType, for other processes
  bool sync_memops = false;
  bool managed_variable = false;  ///< of globals: `__managed__`
  bool accessible = true;         ///< of mappings: cuMemSetAccess allowed a device to use it

  /// Memory of the window that DeviceMemory gave.
  bool allocated() const { return kind == Kind::device || kind == Kind::managed; }
  /// Memory that has pages of this process too (ManagedMemory).
  bool managed() const { return kind == Kind::managed || managed_variable; }
  bool on_device() const {
    return allocated() || kind == Kind::mapped || kind == Kind::opened || kind == Kind::global || kind == Kind::alias;
  }
  bool on_host() const { return kind == Kind::host || kind == Kind::registered; }
  bool contains(std::uint64_t address, std::uint64_t length) const {
    return address >= base && address - base <= bytes && bytes - (address - base) >= length;
  }
};

/// Threads: any; readers do not exclude each other.
class MemoryMap {
 public:
  /// `origin`: the number of the session, which tells its buffer ids from those of others.
  explicit MemoryMap(unsigned origin = 0) : buffer_ids_(std::uint64_t{origin} << 56) {}
  /// The region that holds this address; the end is exclusive.
  std::optional<Region> find(std::uint64_t address) const;
  /// Adds a region; false if it overlaps one that is there.
  bool add(Region region);
  /// Removes the region that begins here; returns it.
  std::optional<Region> remove(std::uint64_t base);
  /// Removes a region of one of these kinds only.
  template <class Accept>
  std::optional<Region> remove_if(std::uint64_t base, Accept&& accept) {
    const std::unique_lock lock(mutex_);
    const auto found = regions_.find(base);
    if (found == regions_.end() || !accept(found->second)) return std::nullopt;
    Region region = found->second;
    regions_.erase(found);
    return region;
  }
  /// Changes a region in place.
  bool update(std::uint64_t base, const std::function<void(Region&)>& change);
  /// Changes in place the regions that begin in [address, address + bytes).
  void update_within(std::uint64_t address, std::uint64_t bytes, const std::function<void(Region&)>& change);
  /// Removes all regions for which `which` holds and returns them.
  std::vector<Region> extract(const std::function<bool(const Region&)>& which);
  /// Removes the regions that begin in [address, address + bytes) and returns them.
  std::vector<Region> extract_within(std::uint64_t address, std::uint64_t bytes);
  /// The regions that begin in [address, address + bytes).
  std::vector<Region> within(std::uint64_t address, std::uint64_t bytes) const;
  /// Whether any region overlaps [address, address + bytes).
  bool overlaps(std::uint64_t address, std::uint64_t bytes) const;
  /// Whether work on a stream may use all of [address, address + bytes): device memory that may be accessed, or host
  /// memory that is known.
  bool usable(std::uint64_t address, std::uint64_t bytes) const;
  /// Whether device memory covers all of [address, address + bytes): one region, or mappings that follow each other. No
  /// driver goes beyond what was allocated.
  bool covered(std::uint64_t address, std::uint64_t bytes) const {
    return covered(address, bytes, [](const Region&) { return true; });
  }

  std::uint64_t next_buffer_id() { return buffer_ids_.fetch_add(1) + 1; }

 private:
  bool covered(std::uint64_t address, std::uint64_t bytes, bool (*accept)(const Region&)) const;

  mutable WriterFirstMutex mutex_;
  std::map<std::uint64_t, Region> regions_;
  std::atomic<std::uint64_t> buffer_ids_;
};

}  // namespace fargpu::client
