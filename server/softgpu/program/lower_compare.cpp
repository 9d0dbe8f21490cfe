#include "exec/ops/compare.h"
#include "exec/ops/convert.h"
#include "program/lowering.h"

namespace fargpu::softgpu::program {
namespace {

using ops::Comparison;
using ops::PredicateOp;
using ptx::OperandKind;
using ptx::Type;

struct ComparisonName {
  std::string_view name;
  Comparison comparison;
};

constexpr ComparisonName comparison_names[] = {
    {"eq", Comparison::eq},   {"ne", Comparison::ne},   {"lt", Comparison::lt},   {"le", Comparison::le},
    {"gt", Comparison::gt},   {"ge", Comparison::ge},   {"lo", Comparison::lt},   {"ls", Comparison::le},
    {"hi", Comparison::gt},   {"hs", Comparison::ge},   {"equ", Comparison::equ}, {"neu", Comparison::neu},
    {"ltu", Comparison::ltu}, {"leu", Comparison::leu}, {"gtu", Comparison::gtu}, {"geu", Comparison::geu},
    {"num", Comparison::num}, {"nan", Comparison::nan},
};

Comparison take_comparison(Lowering& l) {
  for (const ComparisonName& candidate : comparison_names)
    if (l.take(candidate.name)) return candidate.comparison;
  l.fail("expected a comparison");
}

/// .and, .or, .xor with a further predicate.
struct Combination {
  bool is_present = false;
  PredicateOp op = PredicateOp::copy;
};

Combination take_combination(Lowering& l) {
  switch (l.take_one_of({"and", "or", "xor"})) {
    case 0: return {true, PredicateOp::bit_and};
    case 1: return {true, PredicateOp::bit_or};
    case 2: return {true, PredicateOp::bit_xor};
    default: return {};
  }
}

Value combined(Lowering& l, const Combination& combination, Value truth, Value other) {
  if (!combination.is_present) return truth;
  Value result = l.new_predicate();
  l.emit(ops::predicate_logic(combination.op), {result}, {truth, other});
  return result;
}

/// setp on pairs: two predicates, one per half.
void lower_setp_pair(Lowering& l, Comparison comparison, Type type, const Combination& combination) {
  if (l.operand(0).kind != OperandKind::pair) l.fail("expected two destinations");
  Value low = l.new_predicate(), high = l.new_predicate();
  l.emit(ops::compare_pair(comparison, type), {low, high}, {l.source(1, type), l.source(2, type)});
  Value other = combination.is_present ? l.source_predicate(l.operand(3)) : Value{};
  low = combined(l, combination, low, other);
  high = combined(l, combination, high, other);
  l.emit(ops::predicate_logic(PredicateOp::copy), {l.destination_predicate(l.operand(0).elements[0])}, {low});
  l.emit(ops::predicate_logic(PredicateOp::copy), {l.destination_predicate(l.operand(0).elements[1])}, {high});
}

/// setp.cmp{.boolop}: p = cmp op c, and q = !cmp op c if there is a second destination.
void lower_setp(Lowering& l) {
  Comparison comparison = take_comparison(l);
  Combination combination = take_combination(l);
  bool flush = l.take("ftz");
  Type type = l.take_type();
  l.expect_operands(combination.is_present ? 4 : 3);
  if (type == Type::f16x2 || type == Type::bf16x2) return lower_setp_pair(l, comparison, type, combination);

  Handler handler = ops::compare(comparison, type, flush);
  const ptx::Operand& result = l.operand(0);
  if (result.kind != OperandKind::pair && !combination.is_present) {
    l.emit(handler, {l.destination_predicate(result)}, {l.source(1, type), l.source(2, type)});
    return;
  }
  Value truth = l.new_predicate();
  l.emit(handler, {truth}, {l.source(1, type), l.source(2, type)});
  Value other = combination.is_present ? l.source_predicate(l.operand(3)) : Value{};
  Value first = combined(l, combination, truth, other);
  if (result.kind != OperandKind::pair) {
    l.emit(ops::predicate_logic(PredicateOp::copy), {l.destination_predicate(result)}, {first});
    return;
  }
  Value second = combined(l, combination, l.negated(truth), other);
  l.emit(ops::predicate_logic(PredicateOp::copy), {l.destination_predicate(result.elements[0])}, {first});
  l.emit(ops::predicate_logic(PredicateOp::copy), {l.destination_predicate(result.elements[1])}, {second});
}

/// set.cmp on pairs gives a pair of numbers, or of masks.
void lower_set_pair(Lowering& l, Comparison comparison, Type result_type, Type type, const Combination& combination) {
  Value low = l.new_predicate(), high = l.new_predicate();
  l.emit(ops::compare_pair(comparison, type), {low, high}, {l.source(1, type), l.source(2, type)});
  Value other = combination.is_present ? l.source_predicate(l.operand(3)) : Value{};
  low = combined(l, combination, low, other);
  high = combined(l, combination, high, other);
  Type half = result_type == Type::f16x2 ? Type::f16 : result_type == Type::bf16x2 ? Type::bf16 : Type::u16;
  Value low_half = l.new_register(2), high_half = l.new_register(2);
  l.emit(ops::write_truth(half), {low_half}, {low});
  l.emit(ops::write_truth(half), {high_half}, {high});
  l.emit(ops::pack(4, 2), {l.destination(0, Type::b32)}, {low_half, high_half});
}

void lower_set(Lowering& l) {
  Comparison comparison = take_comparison(l);
  Combination combination = take_combination(l);
  bool flush = l.take("ftz");
  Type result_type = l.take_type();
  Type type = l.take_type();
  l.expect_operands(combination.is_present ? 4 : 3);
  if (type == Type::f16x2 || type == Type::bf16x2) return lower_set_pair(l, comparison, result_type, type, combination);
  Value truth = l.new_predicate();
  l.emit(ops::compare(comparison, type, flush), {truth}, {l.source(1, type), l.source(2, type)});
  Value other = combination.is_present ? l.source_predicate(l.operand(3)) : Value{};
  l.emit(ops::write_truth(result_type), {l.destination(0, result_type)}, {combined(l, combination, truth, other)});
}

void lower_selp(Lowering& l) {
  Type type = l.take_type();
  l.expect_operands(4);
  l.emit(ops::select(ptx::size_of(type)), {l.destination(0, type)},
         {l.source(1, type), l.source(2, type), l.source_predicate(l.operand(3))});
}

void lower_slct(Lowering& l) {
  bool flush = l.take("ftz");
  Type type = l.take_type(), sign_type = l.take_type();
  l.expect_operands(4);
  l.emit(ops::select_by_sign(ptx::size_of(type), sign_type, flush), {l.destination(0, type)},
         {l.source(1, type), l.source(2, type), l.source(3, sign_type)});
}

}  // namespace

void add_compare_lowering(LoweringTable& table) {
  table["setp"] = &lower_setp;
  table["set"] = &lower_set;
  table["selp"] = &lower_selp;
  table["slct"] = &lower_slct;
}

}  // namespace fargpu::softgpu::program
