#include "exec/ops/float.h"

#include <array>

#include "program/lower_arithmetic.h"
#include "program/lowering.h"

namespace fargpu::softgpu::program {
namespace {

using ops::FloatForm;
using ops::Rounding;
using ptx::Type;

bool has_float_type(const Lowering& l) {
  for (std::string_view modifier : l.instruction().modifiers)
    if (auto type = ptx::parse_type(modifier)) return ptx::is_float(*type);
  return false;
}

Rounding take_rounding(Lowering& l) {
  switch (l.take_one_of({"rn", "rz", "rm", "rp"})) {
    case 1: return Rounding::toward_zero;
    case 2: return Rounding::down;
    case 3: return Rounding::up;
    default: return Rounding::nearest_even;
  }
}

FloatForm take_form(Lowering& l) {
  FloatForm form;
  form.rounding = take_rounding(l);
  form.flush = l.take("ftz");
  form.saturate = l.take("sat");
  form.relu = l.take("relu");
  form.type = l.take_type();
  return form;
}

void emit_sources(Lowering& l, Handler handler, Type type, size_t source_count) {
  l.expect_operands(source_count + 1);
  std::vector<Value> sources;
  for (size_t i = 1; i <= source_count; ++i) sources.push_back(l.source(i, type));
  l.emit(handler, {l.destination(0, type)}, sources);
}

void lower_fma(Lowering& l) {
  FloatForm form = take_form(l);
  emit_sources(l, ops::float_fma(form), form.type, 3);
}

/// rcp, sqrt: correctly rounded, or approximate.
template <ops::Approximation approximation, Handler (*exact)(const FloatForm&)>
void lower_root(Lowering& l) {
  if (l.take("approx")) {
    bool flush = l.take("ftz");
    Type type = l.take_type();
    return emit_sources(l, ops::approximate(approximation, type, flush), type, 1);
  }
  FloatForm form = take_form(l);
  emit_sources(l, exact(form), form.type, 1);
}

template <ops::Approximation approximation>
void lower_approximation(Lowering& l) {
  if (!l.take("approx")) l.fail("expected .approx");
  bool flush = l.take("ftz");
  Type type = l.take_type();
  emit_sources(l, ops::approximate(approximation, type, flush), type, 1);
}

void lower_copysign(Lowering& l) {
  Type type = l.take_type();
  emit_sources(l, ops::copy_sign(type), type, 2);
}

void lower_testp(Lowering& l) {
  int property = l.take_one_of({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  if (property < 0) l.fail("expected a property");
  Type type = l.take_type();
  l.expect_operands(2);
  l.emit(ops::test_property(static_cast<ops::FloatClass>(property), type), {l.destination_predicate(l.operand(0))},
         {l.source(1, type)});
}

}  // namespace

bool lower_float_binary(Lowering& l, Handler (*choose)(const FloatForm&)) {
  if (!has_float_type(l)) return false;
  FloatForm form = take_form(l);
  emit_sources(l, choose(form), form.type, 2);
  return true;
}

bool lower_float_ternary(Lowering& l) {
  if (!has_float_type(l)) return false;
  lower_fma(l);
  return true;
}

bool lower_float_unary(Lowering& l, Handler (*choose)(Type, bool)) {
  if (!has_float_type(l)) return false;
  bool flush = l.take("ftz");
  Type type = l.take_type();
  emit_sources(l, choose(type, flush), type, 1);
  return true;
}

bool lower_float_divide(Lowering& l) {
  if (!has_float_type(l)) return false;
  bool is_full = l.take("full");  // allowed to be less accurate than it is here
  if (!is_full && l.take("approx")) {
    bool flush = l.take("ftz");
    Type type = l.take_type();
    emit_sources(l, ops::approximate(ops::Approximation::divide, type, flush), type, 2);
    return true;
  }
  FloatForm form = take_form(l);
  emit_sources(l, ops::float_divide(form), form.type, 2);
  return true;
}

bool lower_float_min_max(Lowering& l, bool is_max) {
  if (!has_float_type(l)) return false;
  ops::MinMaxForm form = {.is_max = is_max};
  form.flush = l.take("ftz");
  form.propagate_nan = l.take("NaN");
  form.sign_xor_abs = l.take("xorsign");
  if (form.sign_xor_abs && !l.take("abs")) l.fail("expected .abs behind .xorsign");
  form.type = l.take_type();
  emit_sources(l, ops::float_min_max(form), form.type, 2);
  return true;
}

void add_float_lowering(LoweringTable& table) {
  using ops::Approximation;
  table["fma"] = &lower_fma;
  table["rcp"] = &lower_root<Approximation::reciprocal, &ops::float_reciprocal>;
  table["sqrt"] = &lower_root<Approximation::square_root, &ops::float_square_root>;
  table["rsqrt"] = &lower_approximation<Approximation::reciprocal_sqrt>;
  table["sin"] = &lower_approximation<Approximation::sine>;
  table["cos"] = &lower_approximation<Approximation::cosine>;
  table["lg2"] = &lower_approximation<Approximation::log2>;
  table["ex2"] = &lower_approximation<Approximation::exp2>;
  table["tanh"] = &lower_approximation<Approximation::tanh>;
  table["copysign"] = &lower_copysign;
  table["testp"] = &lower_testp;
}

}  // namespace fargpu::softgpu::program
