#pragma once
// Pinned and registered host memory. The program's bytes stay in this process; the worker keeps a copy of a block only
// while it must remember what a copy out wrote there (semantics: a copy from pinned memory reads what the memory holds
// when the stream gets there), or when kernels use the block ("mapped"). Of a few small mapped blocks, and of all that
// the program registered, both sides compare what they have with what the other is known to have, at launches and
// synchronisations, and exchange what changed; other blocks of the host window are paged (HostPages). Where the worker
// shares memory with this process all of that is only for what the program registered: blocks of the host window are
// the same pages on both sides.

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "client/base/address_ranges.h"
#include "client/objects/graph_parts.h"
#include "expected_bytes.h"
#include "host_pages.h"
#include "memory_map.h"

namespace fargpu {
class Channel;
}

namespace fargpu::client {

class RemoteCallBase;
class Calls;
class ClientLanes;
class Contexts;
class Fences;
class Graphs;
class ManagedMemory;
class Settler;
class StreamWaits;
class Thread;
class WholeSystemWork;
struct Context;

/// Threads: any. Deliveries arrive on the receiving thread.
class HostMemory {
 public:
  struct Parts {
    Calls& calls;
    Channel& channel;  ///< its worker may share memory
    Contexts& contexts;
    Settler& waits;
    StreamWaits& stream_waits;
    WholeSystemWork& whole_system_work;
    MemoryMap& map;
    ManagedMemory& managed;
    const GraphParts& graph_parts;
    const Graphs& graphs;
    ClientLanes& lanes;
    bool one_process;  ///< the worker's and this (tests)
  };
  HostMemory(const Parts& parts, std::uint64_t window_base, std::uint64_t window_bytes);

  /// cuMemHostAlloc: page-aligned memory in the host window.
  CUresult allocate(Thread& thread, Context& context, std::size_t bytes, unsigned flags, void** pointer);
  CUresult free(Thread& thread, void* pointer, Fences& fences);
  /// As free, but without a wait, for nothing that the GPU was given uses the memory any more. It may have gone with
  /// its context meanwhile, and its place be another one's.
  void discard(Thread& thread, std::uint64_t base, std::uint64_t buffer_id, Fences& fences);
  /// Memory of the window that the worker has too, and that the program does not know; whole pages. It goes with the
  /// context.
  CUresult share(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& base);
  /// The worker has given it up.
  void unshare(std::uint64_t base, std::uint64_t bytes) { give_window(base, bytes); }
  CUresult add(Thread& thread, Context& context, void* pointer, std::size_t bytes, unsigned flags);
  CUresult remove(Thread& thread, void* pointer, Fences& fences);

  /// Makes the block that holds this address usable by kernels; gives the address they know it by. `kernel`: the one
  /// whose arguments are the reason, for the log.
  CUresult map(Thread& thread, std::uint64_t address, std::uint64_t& device_address, std::string_view kernel = {});
  /// Whether map() would wait, for the GPU or for another thread.
  bool waits_to_map(std::uint64_t address) const;

  /// The address by which kernels will know the memory at `address`: work that is given it makes the block usable.
  CUresult promise(std::uint64_t address, std::uint64_t& device_address);
  /// Does so for a region of that kind.
  CUresult keep_promise(Thread& thread, const Region& region, std::string_view kernel = {});

  /// Whether there was ever a block in the window.
  bool exists() const { return exists_.load(std::memory_order_relaxed); }
  /// Addresses of pinned memory among the arguments of a kernel, or some of them from an aligned one on, show that it
  /// means to use it: makes it reachable. `copied` becomes true if the worker has a copy of some of it, and not the
  /// same pages.
  CUresult map_named_in(Thread& thread, std::string_view kernel, std::span<const std::byte> arguments, bool& copied);
  /// Whether the program ever registered memory.
  bool registers() const { return registered_end_.load(std::memory_order_relaxed) != 0; }
  /// A kernel is given this value where it takes 8 bytes: if it is the address of registered memory, makes that
  /// reachable, and is the address by which kernels know it then.
  CUresult map_if_registered(Thread& thread, std::string_view kernel, std::uint64_t& value);

  /// From now on blocks of the window that become mapped are paged, however small; so are those that kernels name.
  void compare_no_more() { compares_no_more_ = true; }

  /// `address` is given to work that the GPU does: where it lies in pinned memory, the block is mapped and the address
  /// becomes the one the GPU knows, and the call is marked as one whose outcome the host sees.
  CUresult reach(Thread& thread, std::uint64_t& address, RemoteCallBase& call);

  /// The worker has new graph parts: copies from and to those in mapped blocks go where kernels see these.
  void graph_has(Thread& thread, const NewParts& parts);

  /// Before work that may use mapped blocks: sends what the program changed.
  void before_work(Thread& thread) {
    send_changes(thread);
    pages_.before_work(thread);
  }
  /// Before waits for work that may be waiting for what the program writes.
  void before_wait(Thread& thread) {
    send_changes(thread);
    pages_.after_wait(thread);
  }
  void after_wait(Thread& thread) { pages_.after_wait(thread); }
  /// Sends what changed in blocks that are compared.
  void send_changes(Thread& thread);
  /// Whether kernels use the block that holds this address, so that the worker keeps its contents.
  bool mapped(std::uint64_t address) const;
  bool any_mapped() const { return mapped_.load(std::memory_order_relaxed) > 0; }
  /// Whether kernels use memory that the program registered: its pages stay the program's own.
  bool any_registered_mapped() const { return registered_mapped_.load(std::memory_order_relaxed) > 0; }
  /// Whether the worker has the memory of the block that holds this address, because it is paged or shared: work names
  /// it by its address like memory of the device.
  bool at_worker(std::uint64_t address) const;
  HostPages& pages() { return pages_; }

  /// A copy out to [address, address + bytes), which this context will make, is about to be asked for: from now on the
  /// worker's copy is newer. Returns the number of what will be delivered; 0 if nothing will be.
  std::uint32_t expect_delivery(Thread& thread, Context& context, std::uint64_t address, std::uint64_t bytes);
  /// Takes the expectation back: the copy could not be asked for.
  void cancel_delivery(std::uint32_t number);
  /// Expects a delivery whose bytes come by the lanes, and not by way of a copy that the worker keeps. False if other
  /// bytes for the same memory come otherwise.
  bool expect_by_lanes(Context& context, std::uint64_t begin, std::uint64_t end);
  void arrived_by_lanes(std::uint64_t begin, std::uint64_t end);
  /// A copy that its thread waits for is about to write this memory: until awaited_is_over() it does not become what
  /// kernels see, which takes its pages away. False if it has become that, and the copy goes another way.
  bool expect_awaited(Context& context, std::uint64_t begin, std::uint64_t end);
  void awaited_is_over(std::uint64_t begin, std::uint64_t end);
  /// A thread is about to read this memory, or to have the lanes read it: until reading_is_over() it does not become
  /// what kernels see, unless it is that already.
  void begin_reading(std::uint64_t begin, std::uint64_t end);
  void reading_is_over(std::uint64_t begin, std::uint64_t end);

  /// The first part of [address, address + bytes) for which one answer holds: how long it is, and where its newest
  /// bytes are.
  ExpectedBytes::Part newest(std::uint64_t address, std::uint64_t bytes) const;
  /// Whether a delivery to any of [address, address + bytes) is still to come.
  bool expects(std::uint64_t address, std::uint64_t bytes) const;
  /// Whether the worker may still have to send something for memory that it does not share with this process.
  bool expects_any() const;

  /// Whether a delivery may come for this place.
  bool awaits(std::uint64_t address, std::size_t bytes) const;
  /// The worker has found that the GPU has changed this word as well as the program.
  void lost(std::uint64_t address) const;
  /// They have arrived; no bytes if they were not awaited. `copy`: the number that expect_delivery() gave. 0: none, for
  /// the worker has found that the GPU changed these bytes, or is of a release that tells no numbers. `over`: none come
  /// of the copy any more.
  void delivered(std::uint64_t address, std::span<const std::byte> bytes, std::uint32_t copy, bool over);

  /// The context is gone, and with it the blocks made in it.
  void context_closed(Thread& thread, Context& context);

 private:
  struct Block {
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    bool owned = false;                // memory of the host window, ours to unmap
    bool opened = false;               // the worker has a copy
    bool becomes_mapped = false;       // the worker is asked
    std::uint64_t device_address = 0;  // mapped: where kernels see it
    std::uint64_t alias = 0;           // registered: the place of the window where they do, or will
    bool paged = false;
    bool shared = false;            // the same pages here and at the worker
    std::vector<std::byte> shadow;  // compared: what the worker is known to hold

    bool compared() const { return device_address != 0 && !paged && !shared; }
  };

  class Becoming;
  using By = ExpectedBytes::By;

  CUresult hold(Thread& thread, Region region, bool for_kernels);
  bool take_alias(const Region& region, Block& block);  // under mutex_
  CUresult take_window(std::uint64_t bytes, std::uint64_t& base);
  void give_window(std::uint64_t base, std::uint64_t bytes);
  CUresult wait_for_users(Thread& thread, const Region& region);
  CUresult lock_to_map(Thread& thread, std::uint64_t address, std::unique_lock<std::mutex>& order,
                       std::unique_lock<std::mutex>& lock, std::optional<Region>& region);
  bool goes_by_pages(const Block& block) const;  // under mutex_
  CUresult begin_mapped(Thread& thread, const Region& region, Block& block, std::unique_lock<std::mutex>& lock);
  CUresult settle_to_map(Thread& thread, const Region& region);
  void give_way(std::uint64_t address) const;
  static void rest();
  std::vector<Context*> delivering_to(const Region& region);
  CUresult page(Thread& thread, const Region& region, Block& block, std::unique_lock<std::mutex>& lock);
  bool is_to_be_paged(const Block& block) const { return compares_no_more_ && block.owned && block.compared(); }
  struct Change {
    std::uint64_t address = 0;
    std::vector<std::byte> bytes;
    std::uint64_t heard = 0;  // how many deliveries had come
  };

  static void note_lost(const Block& block, std::uint64_t address);
  Block* find(std::uint64_t address, std::uint64_t bytes) const;  // under mutex_
  Block* next_compared(std::uint64_t after) const;                // under mutex_
  std::vector<Change> take_changes(Block& block);                 // under mutex_
  void open(Thread& thread, Context& owner, const Block& block);  // under order_
  void close(Thread& thread, std::uint64_t base, bool awaited = false);
  void name_parts(Thread& thread, const Block& block);  // under order_
  Fences* instead_of_an_answer(Fences& fences) const;
  void drop(Thread& thread, std::uint64_t base, bool gone_at_worker = false, Fences* fences = nullptr);

  const Parts parts_;
  // What is told of a block leaves in the order in which it became so: held while sending, which may have to wait until
  // the worker reads. The receiving thread never takes it. Blocks go only under it; of one that has gone nobody else
  // tells, so that its close may be awaited without. Before mutex_.
  std::mutex order_;
  // Everything below; never held while sending, for deliveries need it.
  mutable std::mutex mutex_;
  const Window bounds_;  // of window_
  AddressRanges window_;
  std::map<std::uint64_t, std::unique_ptr<Block>> blocks_;
  ExpectedBytes expected_;
  std::uint64_t deliveries_ = 0;  // that have come
  std::atomic<bool> compares_no_more_{false};
  std::uint64_t compared_bytes_ = 0;  // of the blocks of the window that are compared
  std::atomic<bool> exists_{false};
  // All memory that was ever registered lies between these.
  std::atomic<std::uint64_t> registered_begin_{~std::uint64_t{0}}, registered_end_{0};
  std::atomic<unsigned> mapped_{0};
  std::atomic<unsigned> registered_mapped_{0};
  std::atomic<unsigned> compared_{0};     // of these, those that are compared
  std::atomic<std::uint64_t> wanted_{0};  // the block that a thread waits to map, in whose way others' copies come
  HostPages pages_;
};

}  // namespace fargpu::client
