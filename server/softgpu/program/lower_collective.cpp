#include "exec/ops/collective.h"
#include "program/lowering.h"

namespace fargpu::softgpu::program {
namespace {

using ptx::OperandKind;
using ptx::Type;

/// d|p as destinations; the sink where there is no p.
struct ResultPair {
  Value result;
  Value predicate;
};

ResultPair destinations(Lowering& l, Type type) {
  const ptx::Operand& operand = l.operand(0);
  if (operand.kind != OperandKind::pair) return {l.destination(operand, type), l.sink()};
  return {l.destination(operand.elements[0], type), l.destination_predicate(operand.elements[1])};
}

/// The lanes that take part. Instructions from before independent thread scheduling name none:
/// then it is those that execute together.
Value members(Lowering& l, bool has_mask, size_t operand) {
  if (has_mask) return l.source(operand, Type::b32);
  Value mask = l.new_register(4);
  l.emit(ops::active_mask(), {mask}, {});
  return mask;
}

void lower_shfl(Lowering& l) {
  bool is_sync = l.take("sync");
  int mode = l.take_one_of({"up", "down", "bfly", "idx"});
  if (mode < 0) l.fail("expected a mode");
  if (l.take_type() != Type::b32) l.unsupported();
  l.expect_operands(is_sync ? 5 : 4);
  ResultPair to = destinations(l, Type::b32);
  Value a = l.source(1, Type::b32), b = l.source(2, Type::b32), c = l.source(3, Type::b32);
  l.emit(ops::shuffle(static_cast<ops::ShuffleMode>(mode)), {to.result, to.predicate},
         {a, b, c, members(l, is_sync, 4)});
}

void lower_vote(Lowering& l) {
  bool is_sync = l.take("sync");
  int mode = l.take_one_of({"all", "any", "uni", "ballot"});
  if (mode < 0) l.fail("expected a mode");
  Type type = l.take_type();
  if ((mode == 3) != (type == Type::b32)) l.fail("type of a vote");
  l.expect_operands(is_sync ? 3 : 2);
  Value result = mode == 3 ? l.destination(0, Type::b32) : l.destination_predicate(l.operand(0));
  Value predicate = l.source_predicate(l.operand(1));
  l.emit(ops::vote(static_cast<ops::VoteMode>(mode)), {result}, {predicate, members(l, is_sync, 2)});
}

void lower_match(Lowering& l) {
  bool all = l.take("all");
  if (!all && !l.take("any")) l.fail("expected .any or .all");
  if (!l.take("sync")) l.fail("expected .sync");
  Type type = l.take_type();
  l.expect_operands(3);
  ResultPair to = destinations(l, Type::b32);
  l.emit(ops::match(all, ptx::size_of(type)), {to.result, to.predicate}, {l.source(1, type), l.source(2, Type::b32)});
}

void lower_redux(Lowering& l) {
  if (!l.take("sync")) l.fail("expected .sync");
  int op = l.take_one_of({"add", "min", "max", "and", "or", "xor"});
  if (op < 0) l.fail("expected an operation");
  Type type = l.take_type();
  if (type == Type::f32) l.unsupported();
  l.expect_operands(3);
  l.emit(ops::reduce(static_cast<ops::ReduceOp>(op), type == Type::s32), {l.destination(0, type)},
         {l.source(1, type), l.source(2, Type::b32)});
}

void lower_elect(Lowering& l) {
  if (!l.take("sync")) l.fail("expected .sync");
  l.expect_operands(2);
  ResultPair to = destinations(l, Type::b32);
  l.emit(ops::elect(), {to.result, to.predicate}, {l.source(1, Type::b32)});
}

void lower_activemask(Lowering& l) {
  if (l.take_type() != Type::b32) l.unsupported();
  l.expect_operands(1);
  l.emit(ops::active_mask(), {l.destination(0, Type::b32)}, {});
}

}  // namespace

void add_collective_lowering(LoweringTable& table) {
  table["shfl"] = &lower_shfl;
  table["vote"] = &lower_vote;
  table["match"] = &lower_match;
  table["redux"] = &lower_redux;
  table["elect"] = &lower_elect;
  table["activemask"] = &lower_activemask;
}

}  // namespace fargpu::softgpu::program
