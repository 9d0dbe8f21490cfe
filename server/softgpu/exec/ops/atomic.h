#pragma once

#include "exec/instruction.h"
#include "exec/ops/memory.h"
#include "ptx/type.h"

// Atomic operations on memory (PTX ISA 9.7.13.5 to 9.7.13.7: atom, red).

namespace fargpu::softgpu::ops {

enum class AtomicOp {
  add,
  minimum,
  maximum,
  increment,
  decrement,
  bit_and,
  bit_or,
  bit_xor,
  exchange,
  compare_exchange
};

struct AtomicForm {
  AtomicOp op = AtomicOp::add;
  ptx::Type type = ptx::Type::none;
  uint32_t count = 1;  // elements of a vector operation
};

/// Operands: `count` results (or sinks), address, `count` values, and for compare_exchange the
/// value to store; its first value is the one to compare with. Flags: access_flags(), and
/// strong_access if the program looks at the result and so may be waiting for it to change.
Handler atomic(const AtomicForm& form);

}  // namespace fargpu::softgpu::ops
