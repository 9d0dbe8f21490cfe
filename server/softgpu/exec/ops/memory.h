#pragma once

#include "exec/instruction.h"
#include "exec/memory_access.h"

// Loads and stores (PTX ISA 9.7.9). Instruction::immediate is the offset, Instruction::flags are
// access_flags().

namespace fargpu::softgpu::ops {

struct MemoryForm {
  uint32_t element_bytes = 4;
  uint32_t register_bytes = 4;  // not less than an element
  bool is_signed = false;       // loads extend with the sign
  uint32_t count = 1;           // elements: 1, 2, 4 or 8
};

/// Added to Instruction::flags of accesses that other threads may wait for or watch (.volatile,
/// .relaxed, .acquire, .release): each element is accessed as a whole, in order.
inline constexpr uint32_t strong_access = 1;

/// Operands: `count` results, address.
Handler load(const MemoryForm& form);
/// Operands: `count` sources, address.
Handler store(const MemoryForm& form);

/// Address of a place in the running call's local memory, within the local window. Operands:
/// result; immediate: offset in the frame.
Handler local_address(uint32_t bytes);

/// Address of a shared variable, for functions that several kernels may call. Operands: result;
/// flags: its index in the program; immediate: offset to add.
Handler shared_variable_address(uint32_t bytes);

/// Adds (to generic) or removes the base of a window. Operands: result, address;
/// immediate: the window.
Handler to_generic();
Handler from_generic();
/// True if a generic address lies in the window. Operands: predicate, address.
Handler is_in_window();

/// Checks nothing and does nothing, for hints (prefetch, griddepcontrol).
Handler no_operation();
Handler fence();

}  // namespace fargpu::softgpu::ops
