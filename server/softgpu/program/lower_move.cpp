#include "exec/ops/compare.h"
#include "exec/ops/control.h"
#include "exec/ops/convert.h"
#include "exec/ops/memory.h"
#include "program/lowering.h"

namespace fargpu::softgpu::program {
namespace {

using ptx::OperandKind;
using ptx::Type;

// ---- mov -----------------------------------------------------------------------------------------------------------

/// mov.b64 {a, b}, d and mov.b64 d, {a, b}.
void lower_mov_vector(Lowering& l, Type type) {
  bool is_unpack = l.operand(0).kind == OperandKind::vector;
  const ptx::Operand& vector = l.operand(is_unpack ? 0 : 1);
  uint32_t count = static_cast<uint32_t>(vector.elements.size());
  if (count != 2 && count != 4) l.fail("vector of " + std::to_string(count) + " elements");
  uint32_t part_bytes = ptx::size_of(type) / count;
  Type part = part_bytes == 1 ? Type::b8 : part_bytes == 2 ? Type::b16 : part_bytes == 4 ? Type::b32 : Type::b64;
  std::vector<Value> parts;
  for (const ptx::Operand& element : vector.elements)
    parts.push_back(is_unpack ? l.destination(element, part) : l.source(element, part));
  if (is_unpack) l.emit(ops::unpack(ptx::size_of(type), count), parts, {l.source(1, type)});
  else l.emit(ops::pack(ptx::size_of(type), count), {l.destination(0, type)}, parts);
}

void lower_mov(Lowering& l) {
  Type type = l.take_type();
  l.expect_operands(2);
  if (type == Type::pred) {
    l.emit(ops::predicate_logic(ops::PredicateOp::copy), {l.destination_predicate(l.operand(0))},
           {l.source_predicate(l.operand(1))});
    return;
  }
  if (l.operand(0).kind == OperandKind::vector || l.operand(1).kind == OperandKind::vector)
    return lower_mov_vector(l, type);
  Value value = l.source(1, type);
  l.emit(ops::copy(ptx::size_of(type)), {l.destination(0, type)}, {value});
}

// ---- cvt -----------------------------------------------------------------------------------------------------------

struct RoundingName {
  std::string_view name;
  RoundingMode mode;
  bool to_integer;
};

constexpr RoundingName rounding_names[] = {
    {"rni", RoundingMode::nearest_even, true},  {"rzi", RoundingMode::toward_zero, true},
    {"rmi", RoundingMode::down, true},          {"rpi", RoundingMode::up, true},
    {"rn", RoundingMode::nearest_even, false},  {"rz", RoundingMode::toward_zero, false},
    {"rm", RoundingMode::down, false},          {"rp", RoundingMode::up, false},
    {"rna", RoundingMode::nearest_away, false},
};

bool is_integer(Type type) { return ptx::is_signed_integer(type) || ptx::is_unsigned_integer(type); }

/// The type of a register that holds values of a narrower one.
Type extended_type(Lowering& l, const ptx::Operand& result, Type type) {
  uint32_t bytes = l.register_bytes(result);
  if (bytes == ptx::size_of(type) || result.kind == OperandKind::sink) return type;
  if (bytes < ptx::size_of(type)) l.fail("destination of a conversion is too small");
  return bytes == 2 ? Type::b16 : bytes == 4 ? Type::b32 : Type::b64;
}

void lower_cvt(Lowering& l) {
  if (l.take("pack")) l.unsupported();
  ops::ConvertForm form;
  bool has_rounding = false;
  for (const RoundingName& candidate : rounding_names)
    if (!has_rounding && l.take(candidate.name)) {
      form.rounding = candidate.mode;
      form.round_to_integer = candidate.to_integer;
      has_rounding = true;
    }
  form.flush = l.take("ftz");
  form.saturate = l.take("sat");
  form.saturate_finite = l.take("satfinite");
  form.relu = l.take("relu");
  form.to = l.take_type();
  form.from = l.take_type();

  bool is_pair =
      form.to == Type::f16x2 || form.to == Type::bf16x2 || form.to == Type::e4m3x2 || form.to == Type::e5m2x2;
  if (is_pair) {
    bool from_two = l.operand_count() == 3;
    l.expect_operands(2, 3);
    Handler handler = from_two ? ops::convert_pair(form) : ops::convert_short_pair(form);
    std::vector<Value> sources = {l.source(1, form.from)};
    if (from_two) sources.push_back(l.source(2, form.from));
    l.emit(handler, {l.destination(0, form.to)}, sources).immediate = ops::convert_flags(form);
    return;
  }

  l.expect_operands(2);
  if (ptx::is_float(form.from) && is_integer(form.to) && !form.round_to_integer)
    l.fail("conversion to an integer needs a rounding mode");
  if (is_integer(form.from) && is_integer(form.to) && has_rounding)
    l.fail("conversion between integers takes no rounding mode");
  // Floating-point registers are not narrowed; only integers may be parts of their registers.
  Value value = l.source(l.operand(1), form.from, is_integer(form.from));
  Type register_type = extended_type(l, l.operand(0), form.to);
  uint32_t to_bytes = ptx::size_of(form.to), register_bytes = ptx::size_of(register_type);
  bool is_exact_size = to_bytes == register_bytes;
  if (!is_exact_size && !is_integer(form.to)) l.fail("destination of a conversion is too large");
  Value result = is_exact_size ? l.destination(0, form.to) : l.new_register(to_bytes);
  l.emit(ops::convert(form), {result}, {value}).immediate = ops::convert_flags(form);
  if (!is_exact_size)
    l.emit(ops::resize(register_bytes, to_bytes, ptx::is_signed_integer(form.to)), {l.destination(0, register_type)},
           {result});
}

// ---- addresses -----------------------------------------------------------------------------------------------------

/// The window of a state space named by a modifier; global memory and constants are in the first.
Window take_window(Lowering& l) {
  switch (l.take_one_of(
      {"global", "const", "shared", "shared::cta", "shared::cluster", "local", "param", "param::entry"})) {
    case 0:
    case 1: return Window::global;
    case 2:
    case 3:
    case 4: return Window::shared;
    case 5: return Window::local;
    case 6:
    case 7: return Window::param;
    default: l.fail("expected a state space");
  }
}

void lower_cvta(Lowering& l) {
  bool from_generic = l.take("to");
  Window window = take_window(l);
  Type type = l.take_type();
  if (type != Type::u64) l.unsupported("32-bit generic addresses");
  l.expect_operands(2);
  // In functions parameters lie in local memory.
  if (window == Window::param && !l.routine().is_kernel) window = Window::local;
  Value value = l.source(1, type);
  Value result = l.destination(0, type);
  if (window == Window::global) {
    l.emit(ops::copy(8), {result}, {value});
    return;
  }
  l.emit(from_generic ? ops::from_generic() : ops::to_generic(), {result}, {value}).immediate =
      static_cast<int64_t>(window);
}

void lower_isspacep(Lowering& l) {
  bool own_block_only = l.take("shared::cta");
  bool is_constant = l.take("const");
  Window window = own_block_only ? Window::shared : is_constant ? Window::global : take_window(l);
  l.expect_operands(2);
  Value result = l.destination_predicate(l.operand(0));
  Value address = l.source(1, Type::u64);
  IrInstruction& test = l.emit(ops::is_in_window(), {result}, {address});
  test.immediate = static_cast<int64_t>(window);
  test.flags = own_block_only;
  // Constants lie in global memory here, and generic addresses do not tell them apart.
  if (is_constant) l.unsupported();
}

void lower_mapa(Lowering& l) {
  bool is_shared = l.take("shared::cluster");
  Type type = l.take_type();
  l.expect_operands(3);
  l.emit(ops::map_shared(ptx::size_of(type)), {l.destination(0, type)}, {l.source(1, type), l.source(2, Type::u32)})
      .flags = !is_shared;
}

void lower_getctarank(Lowering& l) {
  bool is_shared = l.take("shared::cluster");
  Type type = l.take_type();
  l.expect_operands(2);
  l.emit(ops::shared_rank(ptx::size_of(type)), {l.destination(0, Type::u32)}, {l.source(1, type)}).flags = !is_shared;
}

}  // namespace

void add_move_lowering(LoweringTable& table) {
  table["mov"] = &lower_mov;
  table["cvt"] = &lower_cvt;
  table["cvta"] = &lower_cvta;
  table["isspacep"] = &lower_isspacep;
  table["mapa"] = &lower_mapa;
  table["getctarank"] = &lower_getctarank;
}

}  // namespace fargpu::softgpu::program
