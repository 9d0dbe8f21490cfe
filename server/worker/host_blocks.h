#pragma once
// The worker's copies of pinned memory of the client.

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "device_memory.h"
#include "driver_table.h"
#include "host_budget.h"

namespace fargpu::server {

/// Blocks are known by the client's address. A block that only remembers lies in pinned memory wherever the driver put it, out of
/// the kernels' sight; a mapped block lies in the host window, at the address the kernels were told. Used by the executor only.
class HostBlocks {
 public:
  /// Mapped blocks are part of what the session may use in `memory`.
  HostBlocks(DriverTable& driver, DeviceMemory& memory, HostBudget& budget, std::uint64_t window_base, std::uint64_t window_bytes);
  ~HostBlocks();

  CUresult open(std::uint64_t address, std::uint64_t bytes, std::uint32_t context);
  CUresult open_mapped(std::uint64_t address, std::uint64_t bytes, std::uint64_t device_address, std::uint32_t context);
  CUresult close(std::uint64_t address);
  /// The context is about to go; its blocks go first.
  void context_closes(std::uint32_t context);
  /// The context is about to go, but its blocks are another's from now on.
  void inherit(std::uint32_t from, std::uint32_t to);

  /// Our memory for [address, address + bytes) of a block; empty if there is none.
  std::span<std::byte> find(std::uint64_t address, std::uint64_t bytes);
  /// New contents from the client, for a mapped block.
  bool write(std::uint64_t address, std::span<const std::byte> bytes);
  /// The client has been sent what lies here.
  void delivered(std::uint64_t address, std::uint64_t bytes);
  /// Calls deliver(address, bytes) for everything the GPU changed in mapped blocks since the client last heard.
  void changes(const std::function<void(std::uint64_t, std::span<const std::byte>)>& deliver);
  bool any_mapped() const { return mapped_ > 0; }

 private:
  struct Block {
    std::uint64_t bytes = 0;
    std::byte* memory = nullptr;
    std::uint32_t context = 0;
    bool mapped = false;
    std::vector<std::byte> shadow;  // mapped: what the client is known to hold
    HostCharge charge;
  };
  void drop(Block& block);
  std::pair<const std::uint64_t, Block>* locate(std::uint64_t address, std::uint64_t bytes);

  DriverTable& driver_;
  DeviceMemory& memory_;
  HostBudget& budget_;
  const std::uint64_t window_base_;
  const std::uint64_t window_bytes_;
  std::map<std::uint64_t, Block> blocks_;
  std::map<std::uint64_t, std::uint64_t> device_ranges_;  // where kernels may use host memory
  unsigned mapped_ = 0;
};

}  // namespace fargpu::server
