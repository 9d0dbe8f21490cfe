#pragma once
// Memory without an address: what the program had from cuMemCreate, and what came with it unasked.
// CUDA Driver API, "Virtual Memory Management".

#include <cuda.h>

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "memory_pool.h"

namespace fargpu::client {

/// Handles are the worker's, each for one allocation as long as there is a hold on it. Not synchronised.
class PhysicalMemory {
 public:
  /// Allocations of one kind are as good as each other.
  struct Kind {
    std::uint64_t bytes = 0;
    int device = 0;  ///< ordinal as the program sees it
    std::uint32_t type = 0, handle_types = 0;
    std::uint8_t compression = 0, rdma = 0;
    std::uint16_t usage = 0;
    auto operator<=>(const Kind&) const = default;
  };
  struct Held {
    std::uint64_t bytes = 0;
    int device = 0;
    std::uint32_t handle_types = 0;
    unsigned holds = 0;
  };

  SpareMemory& on(int device) { return on_[device]; }
  std::uint64_t kept_bytes(int device) const;

  /// Whether the worker had plenty when it made memory last: the GPU's page tables will not fail for the want of it.
  void set_plenty(int device, bool plenty);
  bool plenty(int device) const { return plenty_.contains(device); }

  /// The program has this allocation, or has it once more.
  void hold(CUmemGenericAllocationHandle allocation, std::uint64_t bytes, int device, std::uint32_t handle_types);
  /// Nobody has asked for this one yet.
  void keep(const Kind& kind, CUmemGenericAllocationHandle allocation);
  /// One of the kept ones, which the program holds from now on.
  std::optional<CUmemGenericAllocationHandle> take_spare(const Kind& kind);
  /// Takes out kept ones of a device until no more than so many bytes are left.
  std::vector<CUmemGenericAllocationHandle> take_spares(int device, std::uint64_t bytes_left);

  std::optional<Held> held(CUmemGenericAllocationHandle allocation) const;
  /// The program lets go of one hold. What it had; nothing if it is not known to have had any.
  std::optional<Held> drop(CUmemGenericAllocationHandle allocation);

 private:
  std::map<int, SpareMemory> on_;
  std::set<int> plenty_;
  std::map<Kind, std::vector<CUmemGenericAllocationHandle>> spares_;
  std::map<CUmemGenericAllocationHandle, Held> held_;
};

}  // namespace fargpu::client
