#include "exec/ops/compare.h"
#include "exec/ops/convert.h"
#include "exec/ops/integer.h"
#include "program/lower_arithmetic.h"
#include "program/lowering.h"

namespace fargpu::softgpu::program {
namespace {

using ops::Half;
using ptx::Type;

/// result, then `source_count` sources, all of the type the handler was chosen for.
void emit_same_type(Lowering& l, Handler handler, Type type, size_t source_count) {
  l.expect_operands(source_count + 1);
  std::vector<Value> sources;
  for (size_t i = 1; i <= source_count; ++i) sources.push_back(l.source(i, type));
  l.emit(handler, {l.destination(0, type)}, sources);
}

/// The 32-bit type of the same signedness with twice the width, for results of .wide.
Type wider(Lowering& l, Type type) {
  switch (type) {
    case Type::u16: return Type::u32;
    case Type::s16: return Type::s32;
    case Type::u32: return Type::u64;
    case Type::s32: return Type::s64;
    default: l.unsupported();
  }
}

bool is_paired_integer(Lowering& l, bool& is_signed) {
  int found = l.take_one_of({"u16x2", "s16x2"});
  is_signed = found == 1;
  return found >= 0;
}

/// add, sub, min and max of two 16-bit integers per register.
bool lower_paired(Lowering& l, ops::PairedOp op, ops::PairedOp relu_op) {
  bool is_signed = false;
  if (!is_paired_integer(l, is_signed)) return false;
  if (l.take("relu")) op = relu_op;
  emit_same_type(l, ops::paired_integer(op, is_signed), Type::b32, 2);
  return true;
}

void lower_carry(Lowering& l, ops::CarryOp op, bool reads_carry, bool writes_carry) {
  Type type = l.take_type();
  bool has_addend = op == ops::CarryOp::multiply_add_lo || op == ops::CarryOp::multiply_add_hi;
  l.expect_operands(has_addend ? 4 : 3);
  Value zero = l.constant(0, ptx::size_of(type));
  Value c = has_addend ? l.source(3, type) : zero;
  Value carry_in = reads_carry ? l.carry_flag() : l.ir().constant_predicate(op == ops::CarryOp::subtract);
  Value carry_out = writes_carry ? l.carry_flag() : l.sink();
  l.emit(ops::with_carry(op, type), {l.destination(0, type), carry_out},
         {l.source(1, type), l.source(2, type), c, carry_in});
}

void lower_add(Lowering& l) {
  if (l.take("cc")) return lower_carry(l, ops::CarryOp::add, false, true);
  if (lower_paired(l, ops::PairedOp::add, ops::PairedOp::add)) return;
  if (lower_float_binary(l, &ops::float_add)) return;
  bool saturate = l.take("sat");
  Type type = l.take_type();
  emit_same_type(l, ops::add(type, saturate), type, 2);
}

void lower_sub(Lowering& l) {
  if (l.take("cc")) return lower_carry(l, ops::CarryOp::subtract, false, true);
  if (lower_float_binary(l, &ops::float_subtract)) return;
  bool saturate = l.take("sat");
  Type type = l.take_type();
  emit_same_type(l, ops::subtract(type, saturate), type, 2);
}

void lower_addc(Lowering& l) { lower_carry(l, ops::CarryOp::add, true, l.take("cc")); }
void lower_subc(Lowering& l) { lower_carry(l, ops::CarryOp::subtract, true, l.take("cc")); }

Half take_half(Lowering& l) {
  switch (l.take_one_of({"lo", "hi", "wide"})) {
    case 0: return Half::lo;
    case 1: return Half::hi;
    case 2: return Half::wide;
    default: l.fail("expected .lo, .hi or .wide");
  }
}

void lower_mul(Lowering& l) {
  if (lower_float_binary(l, &ops::float_multiply)) return;
  Half half = take_half(l);
  Type type = l.take_type();
  l.expect_operands(3);
  Type result = half == Half::wide ? wider(l, type) : type;
  l.emit(ops::multiply(type, half), {l.destination(0, result)}, {l.source(1, type), l.source(2, type)});
}

void lower_mad(Lowering& l) {
  if (lower_float_ternary(l)) return;
  Half half = take_half(l);
  if (l.take("cc"))
    return lower_carry(l, half == Half::lo ? ops::CarryOp::multiply_add_lo : ops::CarryOp::multiply_add_hi, false,
                       true);
  bool saturate = l.take("sat");
  Type type = l.take_type();
  l.expect_operands(4);
  Type result = half == Half::wide ? wider(l, type) : type;
  l.emit(ops::multiply_add(type, half, saturate), {l.destination(0, result)},
         {l.source(1, type), l.source(2, type), l.source(3, result)});
}

void lower_madc(Lowering& l) {
  Half half = take_half(l);
  if (half == Half::wide) l.fail("madc has no .wide");
  lower_carry(l, half == Half::lo ? ops::CarryOp::multiply_add_lo : ops::CarryOp::multiply_add_hi, true, l.take("cc"));
}

void lower_mul24(Lowering& l) {
  Half half = take_half(l);
  Type type = l.take_type();
  emit_same_type(l, ops::multiply_24(type, half), type, 2);
}

void lower_mad24(Lowering& l) {
  Half half = take_half(l);
  bool saturate = l.take("sat");
  Type type = l.take_type();
  emit_same_type(l, ops::multiply_add_24(type, half, saturate), type, 3);
}

void lower_sad(Lowering& l) {
  Type type = l.take_type();
  emit_same_type(l, ops::sum_of_absolute_difference(type), type, 3);
}

void lower_div(Lowering& l) {
  if (lower_float_divide(l)) return;
  Type type = l.take_type();
  emit_same_type(l, ops::divide(type), type, 2);
}

void lower_rem(Lowering& l) {
  Type type = l.take_type();
  emit_same_type(l, ops::remainder(type), type, 2);
}

void lower_abs(Lowering& l) {
  if (lower_float_unary(l, &ops::float_absolute)) return;
  Type type = l.take_type();
  emit_same_type(l, ops::absolute(type), type, 1);
}

void lower_neg(Lowering& l) {
  if (lower_float_unary(l, &ops::float_negate)) return;
  Type type = l.take_type();
  emit_same_type(l, ops::negate(type), type, 1);
}

void lower_min(Lowering& l) {
  if (lower_paired(l, ops::PairedOp::minimum, ops::PairedOp::minimum_relu)) return;
  if (lower_float_min_max(l, false)) return;
  bool relu = l.take("relu");
  Type type = l.take_type();
  emit_same_type(l, ops::minimum(type, relu), type, 2);
}

void lower_max(Lowering& l) {
  if (lower_paired(l, ops::PairedOp::maximum, ops::PairedOp::maximum_relu)) return;
  if (lower_float_min_max(l, true)) return;
  bool relu = l.take("relu");
  Type type = l.take_type();
  emit_same_type(l, ops::maximum(type, relu), type, 2);
}

void lower_dp4a(Lowering& l) {
  Type a = l.take_type(), b = l.take_type();
  emit_same_type(l, ops::dot_product_4(a == Type::s32, b == Type::s32), Type::b32, 3);
}

void lower_dp2a(Lowering& l) {
  Half half = take_half(l);
  if (half == Half::wide) l.fail("dp2a has no .wide");
  Type a = l.take_type(), b = l.take_type();
  emit_same_type(l, ops::dot_product_2(a == Type::s32, b == Type::s32, half), Type::b32, 3);
}

void lower_vabsdiff4(Lowering& l) {
  bool accumulate = l.take("add");
  for (int i = 0; i < 3; ++i)
    if (l.take_type() != Type::u32) l.unsupported("signed bytes");
  emit_same_type(l, ops::absolute_difference_4(accumulate), Type::u32, 3);
}

// ---- logic and shifts ----------------------------------------------------------------------------------------------

template <ops::PredicateOp predicate_op, Handler (*handler)(Type), size_t source_count>
void lower_logic(Lowering& l) {
  Type type = l.take_type();
  if (type != Type::pred) return emit_same_type(l, handler(type), type, source_count);
  l.expect_operands(source_count + 1);
  std::vector<Value> sources;
  for (size_t i = 1; i <= source_count; ++i) sources.push_back(l.source_predicate(l.operand(i)));
  l.emit(ops::predicate_logic(predicate_op), {l.destination_predicate(l.operand(0))}, sources);
}

void lower_cnot(Lowering& l) {
  Type type = l.take_type();
  emit_same_type(l, ops::logical_not(type), type, 1);
}

void lower_lop3(Lowering& l) {
  int bool_op = l.take_one_of({"or", "and"});
  if (l.take_type() != Type::b32) l.unsupported();
  l.expect_operands(bool_op >= 0 ? 6 : 5);
  ptx::Operand result = l.operand(0);
  ptx::Operand predicate;
  if (bool_op >= 0) {
    if (result.kind != ptx::OperandKind::pair) l.fail("expected two destinations");
    predicate = result.elements[1];
    result = ptx::Operand(result.elements[0]);
  }
  uint32_t table = l.immediate(l.operand(4));
  if (table > 0xff) l.fail("truth table of more than eight bits");
  // The predicate needs the value even where the destination is the sink.
  Value value = bool_op >= 0 ? l.new_register(4) : l.destination(result, Type::b32);
  l.emit(ops::lop3(), {value}, {l.source(1, Type::b32), l.source(2, Type::b32), l.source(3, Type::b32)}).immediate =
      table;
  if (bool_op < 0) return;
  Value is_set = l.new_predicate();
  l.emit(ops::compare(ops::Comparison::ne, Type::u32, false), {is_set}, {value, l.constant(0, 4)});
  auto op = bool_op == 0 ? ops::PredicateOp::bit_or : ops::PredicateOp::bit_and;
  l.emit(ops::predicate_logic(op), {l.destination_predicate(predicate)}, {is_set, l.source_predicate(l.operand(5))});
  l.emit(ops::copy(4), {l.destination(result, Type::b32)}, {value});
}

template <Handler (*handler)(Type)>
void lower_shift(Lowering& l) {
  Type type = l.take_type();
  l.expect_operands(3);
  // The count is 32 bits wide whatever is shifted.
  l.emit(handler(type), {l.destination(0, type)}, {l.source(1, type), l.source(2, Type::u32)});
}

void lower_shf(Lowering& l) {
  int direction = l.take_one_of({"l", "r"});
  int mode = l.take_one_of({"clamp", "wrap"});
  if (direction < 0 || mode < 0) l.fail("expected a direction and a mode");
  if (l.take_type() != Type::b32) l.unsupported();
  emit_same_type(l, ops::funnel_shift(direction == 0, mode == 1), Type::b32, 3);
}

void lower_bfe(Lowering& l) {
  Type type = l.take_type();
  l.expect_operands(4);
  l.emit(ops::extract_bits(type), {l.destination(0, type)},
         {l.source(1, type), l.source(2, Type::u32), l.source(3, Type::u32)});
}

void lower_bfi(Lowering& l) {
  Type type = l.take_type();
  l.expect_operands(5);
  l.emit(ops::insert_bits(type), {l.destination(0, type)},
         {l.source(1, type), l.source(2, type), l.source(3, Type::u32), l.source(4, Type::u32)});
}

void lower_bfind(Lowering& l) {
  bool shift_amount = l.take("shiftamt");
  Type type = l.take_type();
  l.expect_operands(2);
  l.emit(ops::find_leading_bit(type, shift_amount), {l.destination(0, Type::u32)}, {l.source(1, type)});
}

void lower_fns(Lowering& l) {
  if (l.take_type() != Type::b32) l.unsupported();
  emit_same_type(l, ops::find_nth_bit(), Type::b32, 3);
}

void lower_brev(Lowering& l) {
  Type type = l.take_type();
  emit_same_type(l, ops::reverse_bits(type), type, 1);
}

template <Handler (*handler)(Type)>
void lower_count(Lowering& l) {
  Type type = l.take_type();
  l.expect_operands(2);
  l.emit(handler(type), {l.destination(0, Type::u32)}, {l.source(1, type)});
}

void lower_szext(Lowering& l) {
  int mode = l.take_one_of({"clamp", "wrap"});
  if (mode < 0) l.fail("expected .clamp or .wrap");
  Type type = l.take_type();
  emit_same_type(l, ops::sign_or_zero_extend(type, mode == 1), type, 2);
}

void lower_bmsk(Lowering& l) {
  int mode = l.take_one_of({"clamp", "wrap"});
  if (mode < 0) l.fail("expected .clamp or .wrap");
  if (l.take_type() != Type::b32) l.unsupported();
  emit_same_type(l, ops::bit_mask(mode == 1), Type::b32, 2);
}

void lower_prmt(Lowering& l) {
  int mode = l.take_one_of({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  if (l.take_type() != Type::b32) l.unsupported();
  emit_same_type(l, ops::permute(static_cast<ops::PermuteMode>(mode + 1)), Type::b32, 3);
}

}  // namespace

void add_integer_lowering(LoweringTable& table) {
  table["add"] = &lower_add;
  table["sub"] = &lower_sub;
  table["addc"] = &lower_addc;
  table["subc"] = &lower_subc;
  table["mul"] = &lower_mul;
  table["mad"] = &lower_mad;
  table["madc"] = &lower_madc;
  table["mul24"] = &lower_mul24;
  table["mad24"] = &lower_mad24;
  table["sad"] = &lower_sad;
  table["div"] = &lower_div;
  table["rem"] = &lower_rem;
  table["abs"] = &lower_abs;
  table["neg"] = &lower_neg;
  table["min"] = &lower_min;
  table["max"] = &lower_max;
  table["dp4a"] = &lower_dp4a;
  table["dp2a"] = &lower_dp2a;
  table["vabsdiff4"] = &lower_vabsdiff4;
  table["and"] = &lower_logic<ops::PredicateOp::bit_and, &ops::bit_and, 2>;
  table["or"] = &lower_logic<ops::PredicateOp::bit_or, &ops::bit_or, 2>;
  table["xor"] = &lower_logic<ops::PredicateOp::bit_xor, &ops::bit_xor, 2>;
  table["not"] = &lower_logic<ops::PredicateOp::bit_not, &ops::bit_not, 1>;
  table["cnot"] = &lower_cnot;
  table["lop3"] = &lower_lop3;
  table["shl"] = &lower_shift<&ops::shift_left>;
  table["shr"] = &lower_shift<&ops::shift_right>;
  table["shf"] = &lower_shf;
  table["bfe"] = &lower_bfe;
  table["bfi"] = &lower_bfi;
  table["bfind"] = &lower_bfind;
  table["fns"] = &lower_fns;
  table["brev"] = &lower_brev;
  table["clz"] = &lower_count<&ops::count_leading_zeros>;
  table["popc"] = &lower_count<&ops::population_count>;
  table["szext"] = &lower_szext;
  table["bmsk"] = &lower_bmsk;
  table["prmt"] = &lower_prmt;
}

}  // namespace fargpu::softgpu::program
