#pragma once

#include "exec/instruction.h"
#include "ptx/type.h"

// Comparison and selection (PTX ISA 9.7.6 and 9.7.7), and logic on predicates.

namespace fargpu::softgpu::ops {

using ptx::Type;

/// The second half of the list compares floating-point numbers and is true if either is NaN.
enum class Comparison { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

/// Operands: predicate, a, b.
Handler compare(Comparison comparison, Type type, bool flush);
/// For pairs of 16-bit numbers. Operands: two predicates, a, b.
Handler compare_pair(Comparison comparison, Type type);

/// Operands: result, a, b, predicate; of the given size.
Handler select(uint32_t bytes);
/// slct: a if c >= 0, else b. Operands: result, a, b, c.
Handler select_by_sign(uint32_t bytes, Type sign_type, bool flush);

enum class PredicateOp { bit_and, bit_or, bit_xor, bit_not, copy };
/// Operands: predicate, a, b (none for bit_not and copy).
Handler predicate_logic(PredicateOp op);

/// What `set` writes where the comparison is true. Operands: result, predicate.
Handler write_truth(Type result_type);

}  // namespace fargpu::softgpu::ops
