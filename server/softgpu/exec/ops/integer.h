#pragma once

#include "exec/instruction.h"
#include "ptx/type.h"

// Integer arithmetic, bit manipulation and logic (PTX ISA 9.7.1, 9.7.2 and 9.7.8). Each function
// gives the handler of one instruction form, or null if there is no such form.

namespace fargpu::softgpu::ops {

using ptx::Type;

enum class Half { lo, hi, wide };  // which part of a product an instruction keeps

Handler add(Type type, bool saturate);
Handler subtract(Type type, bool saturate);
Handler multiply(Type type, Half half);
Handler multiply_add(Type type, Half half, bool saturate);
Handler multiply_24(Type type, Half half);
Handler multiply_add_24(Type type, Half half, bool saturate);
Handler sum_of_absolute_difference(Type type);
Handler divide(Type type);
Handler remainder(Type type);
Handler absolute(Type type);
Handler negate(Type type);
Handler minimum(Type type, bool relu);
Handler maximum(Type type, bool relu);
/// Instructions on two 16-bit integers in one register: add.u16x2 and the like.
enum class PairedOp { add, minimum, maximum, minimum_relu, maximum_relu };
Handler paired_integer(PairedOp op, bool is_signed);
Handler dot_product_4(bool is_a_signed, bool is_b_signed);
Handler dot_product_2(bool is_a_signed, bool is_b_signed, Half half);
/// vabsdiff4 with and without accumulation, the SIMD video instruction that compilers still emit.
Handler absolute_difference_4(bool accumulate);

/// Chains of additions with carry. Operands: result, carry out, a, b, c, carry in; instructions
/// without c get zeros there. Subtraction is a + ~b + carry, so its carry says that nothing was
/// borrowed, and one without carry in gets ones there: what the hardware does, and what nvcc's
/// 128-bit division, which ends chains of subc with addc, relies on.
enum class CarryOp { add, subtract, multiply_add_lo, multiply_add_hi };
Handler with_carry(CarryOp op, Type type);

Handler bit_and(Type type);
Handler bit_or(Type type);
Handler bit_xor(Type type);
Handler bit_not(Type type);
Handler logical_not(Type type);
/// Any function of three bits; its truth table is Instruction::immediate.
Handler lop3();
Handler shift_left(Type type);
Handler shift_right(Type type);
Handler funnel_shift(bool is_left, bool wrap);
Handler extract_bits(Type type);
Handler insert_bits(Type type);
Handler find_leading_bit(Type type, bool shift_amount);
Handler find_nth_bit();
Handler reverse_bits(Type type);
Handler count_leading_zeros(Type type);
Handler population_count(Type type);
Handler sign_or_zero_extend(Type type, bool wrap);
Handler bit_mask(bool wrap);
enum class PermuteMode { index, f4e, b4e, rc8, ecl, ecr, rc16 };
Handler permute(PermuteMode mode);

}  // namespace fargpu::softgpu::ops
