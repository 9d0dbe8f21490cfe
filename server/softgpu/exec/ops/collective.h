#pragma once

#include "exec/instruction.h"
#include "ptx/type.h"

// Instructions in which the lanes of a warp exchange values (PTX ISA 9.7.9.6 shfl.sync, 9.7.13.9
// vote.sync, match.sync, activemask, redux.sync, elect.sync, bar.warp.sync). The member mask
// is the last operand.

namespace fargpu::softgpu::ops {

enum class ShuffleMode { up, down, butterfly, index };
/// Operands: result, predicate (or sink), value, b, c, members.
Handler shuffle(ShuffleMode mode);

enum class VoteMode { all, any, uniform, ballot };
/// Operands: result (predicate, or b32 for ballot), predicate, members.
Handler vote(VoteMode mode);

/// Operands: result, predicate (or sink), value, members.
Handler match(bool all, uint32_t bytes);

enum class ReduceOp { add, minimum, maximum, bit_and, bit_or, bit_xor };
/// Operands: result, value, members.
Handler reduce(ReduceOp op, bool is_signed);

/// Operands: result, predicate, members.
Handler elect();
/// Operands: members.
Handler warp_barrier();
/// Operands: result.
Handler active_mask();

}  // namespace fargpu::softgpu::ops
