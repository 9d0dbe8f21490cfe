#pragma once
// Pinned memory of the client: the worker's copies of it, or the memory itself where both share it.

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device_memory.h"
#include "driver_table.h"
#include "server/exchange.h"
#include "server/quota/host_budget.h"
#include "protocol/window.h"

namespace fargpu::server {

/// Blocks are known by the client's address. A block that only remembers lies in pinned memory wherever the driver put
/// it, out of the kernels' sight; a mapped block lies in the host window, at the address the kernels were told. A
/// shared block is a mapped one whose pages are the client's too. Used by the executor only.
class HostBlocks {
 public:
  struct Options {
    bool scrub = false;  ///< the driver's pinned memory becomes zeros before it is seen; the kernel's is
    /// With the client (tests): pages of mapped blocks are its own, and are never taken away.
    bool one_process = false;
  };
  /// Mapped blocks are part of what the session may use in `memory`.
  HostBlocks(DriverTable& driver, DeviceMemory& memory, HostBudget& budget, const Window& window, Options options);
  ~HostBlocks();

  CUresult open(std::uint64_t address, std::uint64_t bytes, std::uint32_t context);
  /// `paged`: the client asks for what it wants to see; else it is told of changes.
  CUresult open_mapped(std::uint64_t address, std::uint64_t bytes, std::uint64_t device_address, bool paged,
                       std::uint32_t context);
  /// Makes memory that the client maps at the same address, by the descriptor that is given out.
  CUresult open_shared(std::uint64_t address, std::uint64_t bytes, std::uint32_t context, Descriptor& descriptor);
  /// A mapped block is paged from now on, whose changes have been sent: whole pages. Kernels may be using it.
  CUresult page(std::uint64_t address);
  CUresult close(std::uint64_t address);
  /// The context is about to go; its blocks go first.
  void context_closes(std::uint32_t context);
  /// The context is about to go, but its blocks are another's from now on.
  void inherit(std::uint32_t from, std::uint32_t to);

  /// Has memory for [address, address + bytes) of a block, if it can be had now. It goes with the context that is
  /// current when it is made: `enter` makes the block's current, or says that it is gone.
  CUresult have(std::uint64_t address, std::uint64_t bytes, const std::function<bool(std::uint32_t context)>& enter);
  /// Our memory for [address, address + bytes) of a block; empty if there is none.
  std::span<std::byte> find(std::uint64_t address, std::uint64_t bytes);
  /// Whether all of this is the client's own memory too.
  bool shared(std::uint64_t address, std::uint64_t bytes);
  /// New contents from the client, for a mapped block, from when it had heard of so many deliveries; of all if it does
  /// not say. `lost`: a word of them that the GPU has changed too since then, to something else; 0 for none.
  bool write(std::uint64_t address, std::span<const std::byte> bytes, std::optional<std::uint64_t> heard,
             std::uint64_t& lost);
  /// What the client has changed in a mapped block, of which it knew `known`. `lost`: a word of them that had become
  /// something else meanwhile; 0 for none.
  bool change(std::uint64_t address, std::span<const std::byte> now, std::span<const std::byte> known,
              std::uint64_t& lost);
  /// The client has been sent this for what lies here.
  void delivered(std::uint64_t address, std::span<const std::byte> bytes);
  /// Calls deliver(address, bytes) for everything the GPU changed in mapped blocks that are not paged since the client
  /// last heard, in parts of a message each. It returns the number of the delivery.
  void changes(const std::function<std::uint64_t(std::uint64_t, std::span<const std::byte>)>& deliver);
  bool any_compared() const { return compared_ > 0; }
  /// Whether there is a mapped block at this address that is not paged.
  bool compares(std::uint64_t address) const {
    const auto found = blocks_.find(address);
    return found != blocks_.end() && !found->second.shadow.empty();
  }

 private:
  // Sent to the client, whose writes do not yet say that it has come. Bounded: the oldest have come most likely.
  struct Unheard {
    std::uint64_t delivery = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  struct Block {
    std::uint64_t bytes = 0;
    std::byte* memory = nullptr;  // null: there was no room for it
    std::uint32_t context = 0;
    bool mapped = false;
    bool shared = false;
    std::vector<std::byte> shadow;  // mapped and not paged: what the client is known to hold
    HostCharge charge;
    std::deque<Unheard> unheard{};  // changes of the shadow
  };
  CUresult pin(Block& block);
  void drop(Block& block);
  bool free_in_window(std::uint64_t address, std::uint64_t bytes) const;
  void clear(std::byte* memory, std::uint64_t bytes);
  CUresult put_at(std::uint64_t address, std::uint64_t bytes, int descriptor);
  std::pair<const std::uint64_t, Block>* locate(std::uint64_t address, std::uint64_t bytes);

  DriverTable& driver_;
  DeviceMemory& memory_;
  HostBudget& budget_;
  const Window window_;
  const Options options_;
  std::map<std::uint64_t, Block> blocks_;
  std::map<std::uint64_t, std::uint64_t> device_ranges_;  // where kernels may use host memory
  unsigned compared_ = 0;                                 // mapped blocks that are not paged
};

}  // namespace fargpu::server
