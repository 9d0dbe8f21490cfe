#pragma once

#include <cstdint>
#include <vector>

#include "program/ir.h"

namespace fargpu::softgpu::program {

/// A run of instructions that is entered at its first one only.
struct BasicBlock {
  uint32_t first = 0;  // instruction
  uint32_t last = 0;   // one past the last instruction
  std::vector<uint32_t> successors;
  std::vector<uint32_t> predecessors;
  /// The block where ways that part at the end of this one meet again; none if they do not, or
  /// if threads only exit there.
  uint32_t meeting = none;
  bool is_reachable = false;
};

struct ControlFlow {
  std::vector<BasicBlock> blocks;
  std::vector<uint32_t> block_of_instruction;
};

/// Blocks, edges, and meeting points of a routine. Meeting points are immediate post-dominators,
/// computed as if threads that exit early took no part: a thread that has exited is not waited for.
ControlFlow analyze_control_flow(const IrFunction& function, bool is_kernel);

}  // namespace fargpu::softgpu::program
