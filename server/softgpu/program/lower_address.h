#pragma once

#include "program/lowering.h"

namespace fargpu::softgpu::program {

/// Consumes the state space of a memory instruction; generic if it names none.
ptx::Space take_space(Lowering& l);

/// An address operand as one 64-bit generic address, for instructions that do more than a plain
/// access.
Value generic_address(Lowering& l, const ptx::Operand& operand, ptx::Space space);

}  // namespace fargpu::softgpu::program
