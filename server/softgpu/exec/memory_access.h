#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/instruction.h"
#include "exec/memory_view.h"
#include "exec/warp.h"

namespace fargpu::softgpu {

/// The spaces in which instructions find memory. Constants lie in global memory.
enum class MemorySpace : uint8_t {
  generic,
  global,
  shared,
  local,
  parameter,  // of the kernel
  frame,      // local memory at a fixed place of the running call
};

/// Where an instruction's address comes from.
enum class AddressKind : uint8_t { register_64, register_32, fixed };

/// Host addresses of what the lanes of an instruction access. Local memory keeps the 4-byte words
/// of the 32 lanes of a warp side by side, so wider pieces of it are staged here.
class ResolvedAccess {
 public:
  /// Resolves address operand plus immediate for each lane, and checks bounds, rights and
  /// alignment. False after raising a fault.
  template <MemorySpace space, AddressKind kind>
  bool resolve(Warp& warp, const Instruction& instruction, LaneMask lanes, OperandRef address,
               uint32_t bytes, Access access);

  std::byte* of(int lane) const { return host_.lane[lane]; }
  /// True if all 32 lanes are there and access one piece after the other.
  bool is_contiguous() const { return is_contiguous_; }
  /// Writes staged pieces back to local memory; to be called after stores.
  void commit(Warp& warp);

 private:
  struct LaneAccess {
    Warp& warp;
    const Instruction& instruction;
    uint32_t bytes;
    Access access;
  };
  static constexpr uint32_t piece_bytes_max = 32;

  bool resolve_global(const LaneAccess& what, LaneMask lanes);
  bool resolve_shared(const LaneAccess& what, LaneMask lanes);
  bool resolve_local(const LaneAccess& what, LaneMask lanes);
  bool resolve_parameter(const LaneAccess& what, LaneMask lanes);
  bool resolve_generic(const LaneAccess& what, LaneMask lanes);
  bool resolve_lane(const LaneAccess& what, int lane);
  bool fail(const LaneAccess& what, int lane, const char* space);

  Lanes<uint64_t> address_;
  Lanes<std::byte*> host_;
  bool is_contiguous_ = false;
  LaneMask staged_ = 0;
  uint32_t bytes_ = 0;
  alignas(16) std::byte staging_[warp_size][piece_bytes_max];
};

/// Position of a byte of a lane's local memory in that of its warp.
inline size_t local_position(uint32_t offset, int lane) {
  return size_t{offset / 4} * (4 * warp_size) + static_cast<size_t>(lane) * 4 + offset % 4;
}

/// Reads or writes any piece of memory for one lane, in generic addressing, for instructions that
/// do more than plain accesses. False after raising a fault.
bool read_generic(Warp& warp, const Instruction& at, int lane, uint64_t address, void* to,
                  uint64_t bytes);
bool write_generic(Warp& warp, const Instruction& at, int lane, uint64_t address, const void* from,
                   uint64_t bytes);

}  // namespace fargpu::softgpu
