#pragma once
// Managed memory: memory of the device, with pages of this process at the same addresses: allocations in the window,
// and `__managed__` variables in the band where the host's driver places them. CUDA Driver API, cuMemAllocManaged and
// cuLibraryGetManaged; CUDA C++ Programming Guide, "Unified Memory".

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "windows.h"

namespace fargpu::client {

class Session;
class Thread;
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

/// Contents move in granules. One is *shared* while both sides hold the same bytes (the program may read it), *ours* while the
/// program may have written it, *theirs* while the GPU may have. Before work that may use managed memory everything of ours is sent
/// and becomes theirs; a page of theirs is fetched when the program touches it, which a fault tells.
/// The pages are those of one memory file, mapped twice: where the program sees them, with changing protection, and where bytes
/// come and go without another thread seeing half of them. Blocks of variables are whole granules: variables of several modules may
/// share one, and what lies between them never travels.
/// Threads: any, also within a fault.
class ManagedMemory {
 public:
  static constexpr std::uint64_t granule_bytes = 64u << 10;

  ManagedMemory(Session& session, const Window& window, const Window& driver_band);
  ManagedMemory(const ManagedMemory&) = delete;
  ManagedMemory& operator=(const ManagedMemory&) = delete;

  CUresult allocate(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& address);
  /// Allocations are for all devices: those that work is done on get access to them. A context was opened, perhaps of another device.
  void context_opened(Thread& thread);
  /// An allocation of ours is gone; its pages go too.
  void dropped(std::uint64_t address);

  /// A variable of a module gets pages here, if it has none yet. False if it lies where none can be.
  bool adopt(Thread& thread, Context& context, std::uint64_t address, std::uint64_t bytes);
  /// It is gone.
  void forsake(std::uint64_t address, std::uint64_t bytes);

  /// Work that may use managed memory is about to be submitted.
  void before_work(Thread& thread) {
    if (touched_.load(std::memory_order_relaxed)) hand_over(thread);
  }
  /// The program has waited for work: what it saw while that was running may be old.
  void after_wait(Thread& thread) {
    if (touched_while_busy_.load(std::memory_order_relaxed)) hand_over(thread);
  }

  /// The program touched an address that it may not use at present. False if that is none of ours.
  bool fault(std::uint64_t address, bool writing);
  /// Makes what is managed of [address, address + bytes) usable, as if the program had touched every page.
  void touch(std::uint64_t address, std::uint64_t bytes, bool writing);

  /// Changes what is known of [address, address + bytes); false unless all of it is managed.
  bool advise(std::uint64_t address, std::uint64_t bytes, const std::function<void(ManagedAdvice&)>& change);
  /// What is known of each part of it; false unless all of it is managed.
  bool visit(std::uint64_t address, std::uint64_t bytes, const std::function<void(const ManagedAdvice&)>& visit) const;

 private:
  enum class State : std::uint8_t { fresh, shared, ours, theirs };
  struct Block {
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;  // whole pages
    Context* context = nullptr;
    std::byte* alias = nullptr;
    std::map<std::uint64_t, std::uint64_t> parts;  // offsets and lengths of what the GPU has; all of it, or variables
    std::vector<State> states;
    std::map<std::size_t, std::vector<std::byte>> twins;  // contents from before the program wrote while the GPU was busy
    std::size_t next_fetch = 0;   // the granule behind the last fetch
    std::size_t fetch_ahead = 1;  // granules to fetch at once; grows while the program goes on in order
    std::map<std::uint64_t, ManagedAdvice> advice;  // from this offset on
  };

  void hand_over(Thread& thread);
  void open_to_devices(Thread& thread, int owner);
  bool send(Thread& thread, Block& block);  // whether there was anything
  void await_sent(Thread& thread, Context& context);
  void send_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes);
  void fetch_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes);
  void fetch(Thread& thread, Block& block, std::size_t granule);
  void open(Block& block, std::size_t granule, bool writing);  // under mutex_
  void protect(const Block& block, std::size_t first, std::size_t end, int access) const;
  std::uint64_t offset_of(std::size_t granule, const Block& block) const;
  Block* find(std::uint64_t address) const;  // under mutex_
  std::map<std::uint64_t, ManagedAdvice>::iterator split(Block& block, std::uint64_t offset);
  Stream& stream_of(Thread& thread, Context& context);
  void prepare();
  std::unique_ptr<Block> make_block(Context& context, std::uint64_t base, std::uint64_t bytes, State state, int access);
  void drop(const Block& block);
  off_t place_in_file(std::uint64_t address) const;

  Session& session_;
  const Window window_;
  const Window driver_band_;
  mutable std::mutex mutex_;
  int file_ = -1;  // as long as the window and the band behind it; only what is touched takes memory
  std::map<std::uint64_t, std::unique_ptr<Block>> blocks_;
  std::atomic<bool> touched_{false};             // something is not theirs
  std::atomic<bool> touched_while_busy_{false};
};

}  // namespace fargpu::client
