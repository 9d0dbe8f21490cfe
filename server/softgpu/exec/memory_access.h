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

// How loads, stores and atomics name their memory in Instruction::flags. Bit 0 is the handler's.
inline constexpr uint32_t access_flags(MemorySpace space, AddressKind kind) {
  return static_cast<uint32_t>(space) << 8 | static_cast<uint32_t>(kind) << 16;
}
inline MemorySpace space_of(const Instruction& instruction) {
  return static_cast<MemorySpace>((instruction.flags >> 8) & 0xff);
}
inline AddressKind address_kind_of(const Instruction& instruction) {
  return static_cast<AddressKind>((instruction.flags >> 16) & 0xff);
}

/// Host addresses of what the lanes of an instruction access. Local memory keeps the 4-byte words
/// of the 32 lanes of a warp side by side, so wider pieces of it are staged here.
class ResolvedAccess {
 public:
  /// How the pieces lie to one another. In the first two cases all 32 lanes take part.
  enum class Pattern : uint8_t { contiguous, uniform, scattered };

  /// Resolves address operand plus immediate for each lane, and checks bounds, rights and
  /// alignment. False after raising a fault.
  bool resolve(Warp& warp, const Instruction& instruction, LaneMask lanes, OperandRef address, uint32_t bytes,
               Access access);

  Pattern pattern() const { return pattern_; }
  std::byte* of(int lane) const {
    return pattern_ == Pattern::scattered ? host_.lane[lane]
           : pattern_ == Pattern::uniform ? base_
                                          : base_ + static_cast<size_t>(lane) * bytes_;
  }
  /// Writes staged pieces back to local memory; to be called after stores.
  void commit(Warp& warp) {
    if (staged_ != 0) write_staged(warp);
  }

 private:
  struct LaneAccess {
    Warp& warp;
    const Instruction& instruction;
    uint32_t bytes;
    Access access;
  };
  static constexpr uint32_t piece_bytes_max = 32;

  bool resolve_here(const LaneAccess& what, LaneMask lanes, OperandRef address);
  static bool resolve_any(ResolvedAccess&, const LaneAccess&, LaneMask lanes, OperandRef address);
  static bool resolve_wide(ResolvedAccess&, const LaneAccess&, LaneMask lanes, OperandRef address);

  template <class Base>
  bool resolve_lanes(const LaneAccess& what, LaneMask lanes, const Base* base);
  bool resolve_fixed(const LaneAccess& what, LaneMask lanes);
  bool resolve_scattered(const LaneAccess& what, MemorySpace space);
  static std::byte* find_block(const LaneAccess& what, MemorySpace space, uint64_t first, uint64_t bytes);
  bool resolve_global(const LaneAccess& what, LaneMask lanes);
  bool resolve_shared(const LaneAccess& what, LaneMask lanes);
  bool resolve_local(const LaneAccess& what, LaneMask lanes);
  bool resolve_parameter(const LaneAccess& what, LaneMask lanes);
  bool resolve_generic(const LaneAccess& what, LaneMask lanes);
  bool resolve_in(MemorySpace space, const LaneAccess& what, LaneMask lanes);
  void write_staged(Warp& warp);
  bool fail(const LaneAccess& what, int lane, const char* space);

  Lanes<uint64_t> address_;
  Lanes<std::byte*> host_;     // of scattered pieces
  std::byte* base_ = nullptr;  // of the first of others
  Pattern pattern_ = Pattern::scattered;
  LaneMask staged_ = 0;
  uint32_t bytes_ = 0;
  alignas(16) std::byte staging_[warp_size][piece_bytes_max];
};

/// Position of a byte of a lane's local memory in that of its warp.
inline size_t local_position(uint32_t offset, int lane) {
  return size_t{offset / 4} * (4 * warp_size) + static_cast<size_t>(lane) * 4 + offset % 4;
}

/// Where a piece of memory lies, in generic addressing, if all of it lies together; else null.
std::byte* find_generic(Warp& warp, int lane, uint64_t address, uint64_t bytes, Access access);
/// Reads or writes any piece of memory for one lane, in generic addressing, for instructions that
/// do more than plain accesses. False after raising a fault.
bool read_generic(Warp& warp, const Instruction& at, int lane, uint64_t address, void* to, uint64_t bytes);
bool write_generic(Warp& warp, const Instruction& at, int lane, uint64_t address, const void* from, uint64_t bytes);

}  // namespace fargpu::softgpu
