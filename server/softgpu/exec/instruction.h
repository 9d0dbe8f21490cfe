#pragma once

#include <cstdint>
#include <string_view>

#include "exec/lanes.h"

namespace fargpu::softgpu {

struct Instruction;
class Warp;

/// Executes one instruction for the given lanes (never none) and returns the next one, or null if
/// the lanes cannot go on now; the warp then holds the reason.
using Handler = const Instruction* (*)(Warp& warp, const Instruction& instruction, LaneMask lanes);

/// Where the 32 values of an operand lie.
enum class Bank : uint32_t {
  frame = 0,      // registers of the running function
  constants = 1,  // literals and addresses, each written out once per lane
  warp = 2,       // %tid and the like, which differ between warps; and the sink
  block = 3,      // %ctaid and the like, equal for all warps of a block
};
inline constexpr int bank_count = 4;

/// A bank and the byte offset in it, which is a multiple of 4.
struct OperandRef {
  uint32_t code = 0;

  static OperandRef make(Bank bank, uint32_t offset) { return {offset | static_cast<uint32_t>(bank)}; }
  uint32_t bank() const { return code & 3; }
  uint32_t offset() const { return code & ~3u; }
};

/// A decoded instruction, one cache line. What the operands, `immediate` and `flags` mean
/// is between the handler and the code that emits it; destinations come first.
struct alignas(64) Instruction {
  static constexpr uint32_t no_guard = UINT32_MAX;
  static constexpr int operand_count = 9;

  Handler run = nullptr;
  union {
    int64_t immediate = 0;
    const void* details;  // owned by the function
  };
  OperandRef operands[operand_count];
  uint32_t guard = no_guard;  // frame offset of the predicate; bit 0: negated
  uint32_t line = 0;          // in the PTX text
  uint32_t flags = 0;
};
static_assert(sizeof(Instruction) == 64);

}  // namespace fargpu::softgpu
