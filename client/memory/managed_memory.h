#pragma once
// Managed memory: memory of the device, with pages of this process at the same addresses: allocations in the window,
// and `__managed__` variables in the band where the host's driver places them. CUDA Driver API, cuMemAllocManaged and
// cuLibraryGetManaged; CUDA C++ Programming Guide, "Unified Memory".

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "paged_memory.h"

namespace fargpu::client {

class DeviceMemory;
class PeerAccess;
class Streams;
class Thread;
class WholeSystemWork;
struct Context;
struct Stream;

/// What cuMemAdvise and cuMemPrefetchAsync said of a range; told again by cuMemRangeGetAttribute.
struct ManagedAdvice {
  static constexpr CUmemLocation nowhere{.type = CU_MEM_LOCATION_TYPE_INVALID, .id = 0};
  bool read_mostly = false;
  CUmemLocation preferred = nowhere;
  CUmemLocation last_prefetch = nowhere;
  std::vector<CUmemLocation> accessed_by;
};

/// Allocations, and blocks of variables, which are whole granules: variables of several modules may share one, and what
/// lies between them never travels.
class ManagedMemory final : public PagedMemory {
 public:
  struct Parts {
    Calls& calls;
    Contexts& contexts;
    WholeSystemWork& whole_system_work;
    Streams& streams;
    DeviceMemory& device_memory;
    PeerAccess& peers;
  };
  ManagedMemory(const Parts& parts, const Window& window, const Window& driver_band);

  CUresult allocate(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& address);
  /// Allocations are for all devices: those that work is done on get access to them. A context was opened, perhaps of
  /// another device.
  void context_opened(Thread& thread);
  /// An allocation of ours is gone; its pages go too.
  void dropped(std::uint64_t address);

  /// A variable of a module gets pages here, if it has none yet. False if it lies where none can be.
  bool adopt(Thread& thread, Context& context, std::uint64_t address, std::uint64_t bytes);
  /// It is gone.
  void forsake(std::uint64_t address, std::uint64_t bytes);
  /// A context is about to be closed: contents of variables go by way of another one from now on.
  void hand_on_variables(Thread& thread, Context& from, Context& to);

  /// Changes what is known of [address, address + bytes); false unless all of it is managed.
  bool advise(std::uint64_t address, std::uint64_t bytes, const std::function<void(ManagedAdvice&)>& change);
  /// What is known of each part of it; false unless all of it is managed.
  bool visit(std::uint64_t address, std::uint64_t bytes, const std::function<void(const ManagedAdvice&)>& visit) const;

 private:
  struct Block : PagedMemory::Block {
    std::map<std::uint64_t, std::uint64_t> parts;   // offsets and lengths of what the GPU has; all of it, or variables
    std::map<std::uint64_t, ManagedAdvice> advice;  // from this offset on
  };

  void send_range(Thread& thread, PagedMemory::Block& block, std::uint64_t offset, std::uint64_t bytes) override;
  void fetch_range(Thread& thread, PagedMemory::Block& block, std::uint64_t offset, std::uint64_t bytes) override;
  bool send_changes(Thread& thread, PagedMemory::Block& block, std::uint64_t offset,
                    std::span<const std::byte> known) override;
  void send_change(Thread& thread, Context& context, std::uint64_t address, std::span<const std::byte> now,
                   std::span<const std::byte> known);
  void ask_behind_changes(Thread& thread) override;
  void handed_over(Thread& thread) override;
  void wait_for_sent(Thread& thread, Context& context);
  void make_zero(Thread& thread, const PagedMemory::Block& block);  // under the lock
  void open_to_devices(Thread& thread, int owner);
  Block* find(std::uint64_t address) const { return static_cast<Block*>(PagedMemory::find(address)); }
  std::map<std::uint64_t, ManagedAdvice>::iterator split(Block& block, std::uint64_t offset);
  Stream& stream_of(Thread& thread, Context& context);
  std::unique_ptr<Block> make_block(Context& context, std::uint64_t base, std::uint64_t bytes, State state, int access);

  const Parts parts_;
  const Window window_;
  std::atomic<bool> told_of_room_{false};
  const Window driver_band_;
  std::set<Context*> sent_to_;      // work of other contexts does not come behind what was sent by itself
  std::set<CUcontext> changed_in_;  // in which the worker compares what was sent; they may be gone by now
  unsigned changes_under_way_ = 0;  // that the worker may not have compared yet
};

}  // namespace fargpu::client
