#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "memory/page_table.h"
#include "memory/physical_memory.h"
#include "memory/range_allocator.h"

namespace fargpu::softgpu {

enum class MemoryKind : uint8_t {
  device,   // cuMemAlloc, module variables, memory pools
  mapped,   // cuMemMap
  managed,  // host memory that all devices see
  host_allocated,
  host_registered,
  imported,  // another process's memory
};

/// A piece of the address space that is backed by memory.
struct MemoryRange {
  DeviceAddress base = 0;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  int device = 0;           // that it belongs to; for host memory, that was current
  uint64_t context_id = 0;  // that it ends with; zero for none
  std::byte* host = nullptr;
  std::shared_ptr<PhysicalMemory> physical;  // null for host memory
  std::shared_ptr<std::byte> replacement;    // of pages that the program has unmapped
  uint64_t physical_offset = 0;
  uint64_t serial = 0;  // unique over the life of the process
  unsigned flags = 0;   // of the call that made it
  bool sync_memops = false;
  CUmemoryPool pool = nullptr;  // that it was taken from

  bool is_host() const { return kind == MemoryKind::host_allocated || kind == MemoryKind::host_registered; }
  bool contains(DeviceAddress address) const { return address - base < bytes; }
};

/// A contiguous piece of host memory behind device addresses, kept alive while this lives.
struct MemorySpan {
  std::byte* host = nullptr;
  uint64_t bytes = 0;
  std::shared_ptr<const MemoryRange> range;  // null for plain host memory
};

/// The one address space of all devices of the process and of the host (unified addressing). It
/// knows what lies where and keeps the page tables of the devices. Thread safe.
///
/// Addresses that the library chooses lie in ranges it has reserved from the host without access,
/// so they are nobody else's. Addresses that a program wished for (cuMemAddressReserve) are taken
/// as they are and never touched on the host.
class AddressSpace {
 public:
  /// One account of memory per device.
  explicit AddressSpace(std::vector<std::shared_ptr<MemoryAccount>> accounts);

  PageTable& page_table(int device) { return *page_tables_[device]; }
  MemoryAccount& account(int device) { return *accounts_[device]; }

  // ---- memory of the devices ---------------------------------------------------------------------------------------

  /// Allocates at least 512-byte aligned memory; throws OUT_OF_MEMORY.
  DeviceAddress allocate(int device, uint64_t context_id, uint64_t bytes, CUmemoryPool pool = nullptr);
  /// Gives back what starts at the address; throws INVALID_VALUE if nothing does.
  void free(DeviceAddress address);
  /// Gives back all of a context's memory, host memory too.
  void free_all_of(uint64_t context_id);

  // ---- host memory -------------------------------------------------------------------------------------------------

  DeviceAddress allocate_managed(int device, uint64_t context_id, uint64_t bytes, unsigned flags);
  void* allocate_host(int device, uint64_t context_id, uint64_t bytes, unsigned flags);
  void register_host(int device, uint64_t context_id, void* address, uint64_t bytes, unsigned flags);
  void unregister_host(void* address);
  /// A real GPU keeps registered pages that the program unmaps. This one cannot: empty pages take
  /// the place of those that are gone. To be called before work runs.
  void replace_unmapped_host();
  void free_host(void* address);

  // ---- virtual memory management -----------------------------------------------------------------------------------

  DeviceAddress reserve(uint64_t bytes, uint64_t align, DeviceAddress wished);
  void free_reservation(DeviceAddress address, uint64_t bytes);
  void map(DeviceAddress address, uint64_t bytes, int device, std::shared_ptr<PhysicalMemory> physical,
           uint64_t offset);
  /// The memory that was mapped there.
  std::vector<std::shared_ptr<PhysicalMemory>> unmap(DeviceAddress address, uint64_t bytes);
  void set_access(DeviceAddress address, uint64_t bytes, int device, Access access);
  Access get_access(DeviceAddress address, int device) const;
  /// Maps memory that another process made, at an address of our choice.
  DeviceAddress map_imported(int device, uint64_t context_id, std::shared_ptr<PhysicalMemory> physical);

  // ---- peers -------------------------------------------------------------------------------------------------------

  /// Lets kernels of one device access the memory of another one, what there is and what comes.
  void enable_peer(int device, int peer);
  void disable_peer(int device, int peer);
  /// Gives or takes away the access of `peer`; no error if it is so already.
  void set_pool_peer(int device, int peer, bool wants_access);
  bool is_peer(int device, int peer) const;

  // ---- queries -----------------------------------------------------------------------------------------------------

  std::shared_ptr<const MemoryRange> find(DeviceAddress address) const;
  /// The reservation an address lies in, as base and bytes.
  std::optional<std::pair<DeviceAddress, uint64_t>> find_reservation(DeviceAddress address) const;
  void set_sync_memops(DeviceAddress address, bool value);

  /// The host memory behind a piece of the address space. An address that is not ours is taken as
  /// plain host memory. Nothing if a part of the piece is not backed.
  std::optional<std::vector<MemorySpan>> spans(DeviceAddress address, uint64_t bytes) const;
  bool is_plain_host(DeviceAddress address) const;

 private:
  /// 2 MiB of a device that small allocations of one context are cut from.
  struct Slab {
    DeviceAddress base = 0;
    int device = 0;
    uint64_t context_id = 0;
    std::shared_ptr<PhysicalMemory> physical;
    RangeAllocator free_offsets;
  };
  struct Reservation {
    uint64_t bytes = 0;
    bool is_own = false;  // taken from our arena
  };

  // All of these expect the lock to be held.
  DeviceAddress take_addresses(uint64_t bytes, uint64_t align);
  DeviceAddress allocate_small(int device, uint64_t context_id, uint64_t bytes, CUmemoryPool pool);
  DeviceAddress allocate_large(int device, uint64_t context_id, uint64_t bytes, CUmemoryPool pool);
  void map_on_devices(DeviceAddress address, std::byte* host, uint64_t bytes, int owner);
  void unmap_everywhere(DeviceAddress address, uint64_t bytes);
  void unmap_host_pages(const MemoryRange& range);
  bool take_wished(DeviceAddress address, uint64_t bytes, bool& is_own);
  void add_range(MemoryRange range);
  void add_host_range(MemoryKind kind, int device, uint64_t context_id, std::byte* host, uint64_t bytes,
                      unsigned flags);
  std::shared_ptr<MemoryRange> range_at(DeviceAddress address) const;
  bool is_reserved(DeviceAddress address, uint64_t bytes) const;
  void release_range(std::map<DeviceAddress, std::shared_ptr<MemoryRange>>::iterator it);
  void release_small(const MemoryRange& range);

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<MemoryAccount>> accounts_;
  std::vector<std::unique_ptr<PageTable>> page_tables_;
  std::map<DeviceAddress, std::shared_ptr<MemoryRange>> ranges_;
  std::set<DeviceAddress> registered_;  // of ranges_, what is the program's own
  std::map<DeviceAddress, std::unique_ptr<Slab>> slabs_;
  std::map<DeviceAddress, Reservation> reservations_;
  /// Whether any device may use the mapping; under the lock.
  bool any_access(DeviceAddress base) const;

  std::map<std::pair<DeviceAddress, int>, Access> accesses_;  // of mapped ranges, by device
  std::set<std::pair<int, int>> peers_;                       // device, whose memory it may use
  std::map<DeviceAddress, uint64_t> arena_pieces_;            // what the host gave us, with its size
  RangeAllocator arena_;                                      // what of it is free
  uint64_t next_serial_ = 1;
};

}  // namespace fargpu::softgpu
