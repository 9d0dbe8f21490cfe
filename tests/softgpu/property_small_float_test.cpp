// Numbers of 16 bits, alone and in pairs.

#include "property.h"

using namespace softgpu_tests;

namespace {

/// a * b + c, exact to double plus the sign of what is lost.
template <class F>
F multiply_add(F a, F b, F c) {
  double product = value_of(a) * value_of(b);  // exact: at most 22 bits
  double addend = value_of(c), sum = product + addend;
  if (!std::isfinite(sum)) return rounded<F>(sum);
  double part = sum - product, error = (product - (sum - part)) + (addend - part);
  return rounded<F>(sum, Round::nearest, false, error > 0 ? 1 : error < 0 ? -1 : 0);
}

template <class F>
bool is_nan(F a) {
  return std::isnan(value_of(a));
}

template <class F>
F least(F a, F b) {
  if (is_nan(a) || is_nan(b)) return is_nan(a) ? b : a;
  double x = value_of(a), y = value_of(b);
  if (x == 0 && y == 0) return std::signbit(x) ? a : b;
  return x <= y ? a : b;
}

template <class F>
F most(F a, F b) {
  if (is_nan(a) || is_nan(b)) return is_nan(a) ? b : a;
  double x = value_of(a), y = value_of(b);
  if (x == 0 && y == 0) return std::signbit(x) ? b : a;
  return x >= y ? a : b;
}

template <class F>
F nan_of() {
  return rounded<F>(NAN);
}

/// Checks an instruction for one number and for two in a register.
template <class F, class Reference>
void check_binary(const std::string& instruction, const std::string& type, Reference reference) {
  check<F(F, F)>(instruction + type, reference);
  check<Pair<F>(Pair<F>, Pair<F>)>(instruction + type + "x2", [&](Pair<F> a, Pair<F> b) {
    return Pair<F>{reference(a.low, b.low), reference(a.high, b.high)};
  });
}

template <class F, class Reference>
void check_unary(const std::string& instruction, const std::string& type, Reference reference) {
  check<F(F)>(instruction + type, reference);
  check<Pair<F>(Pair<F>)>(instruction + type + "x2", [&](Pair<F> a) {
    return Pair<F>{reference(a.low), reference(a.high)};
  });
}

template <class F>
void check_arithmetic(const std::string& type, const std::string& ftz_free_round) {
  std::string rn = ftz_free_round;
  check_binary<F>("add" + rn, type, [](F a, F b) { return rounded<F>(value_of(a) + value_of(b)); });
  check_binary<F>("sub" + rn, type, [](F a, F b) { return rounded<F>(value_of(a) - value_of(b)); });
  check_binary<F>("mul" + rn, type, [](F a, F b) { return rounded<F>(value_of(a) * value_of(b)); });
  check<F(F, F, F)>("fma.rn" + type, multiply_add<F>);
  check<Pair<F>(Pair<F>, Pair<F>, Pair<F>)>("fma.rn" + type + "x2", [](auto a, auto b, auto c) {
    return Pair<F>{multiply_add(a.low, b.low, c.low), multiply_add(a.high, b.high, c.high)};
  });
  check<F(F, F, F)>("fma.rn.relu" + type, [](F a, F b, F c) {
    F result = multiply_add(a, b, c);
    return value_of(result) <= 0 ? F{0} : result;
  });
  check_unary<F>("neg", type, [](F a) { return rounded<F>(-value_of(a)); });
  check_unary<F>("abs", type, [](F a) { return rounded<F>(std::fabs(value_of(a))); });
  check_binary<F>("min", type, least<F>);
  check_binary<F>("max", type, most<F>);
  check_binary<F>("min.NaN", type, [](F a, F b) { return is_nan(a) || is_nan(b) ? nan_of<F>() : least(a, b); });
  check_binary<F>("max.NaN", type, [](F a, F b) { return is_nan(a) || is_nan(b) ? nan_of<F>() : most(a, b); });
  auto magnitude = [](F a) { return rounded<F>(std::fabs(value_of(a))); };
  check_binary<F>("max.xorsign.abs", type, [&](F a, F b) {
    F result = most(magnitude(a), magnitude(b));
    if (is_nan(result)) return result;
    bool is_negative = ((a.bits ^ b.bits) & FormatOf<F>::sign) != 0;
    return rounded<F>(is_negative ? -value_of(result) : value_of(result));
  });
}

template <class F>
void check_comparisons(const std::string& type) {
  auto one = [&](const char* relation, auto function) {
    std::string text = std::string(relation) + type;
    check<bool(F, F)>("setp." + text + " %pd, %a, %b;", [&](F a, F b) { return function(value_of(a), value_of(b)); });
    check<uint32_t(F, F)>("set." + std::string(relation) + ".u32" + type,
                          [&](F a, F b) { return function(value_of(a), value_of(b)) ? ~0u : 0u; });
    // Both halves at once: two predicates, or a number of each.
    check<bool(Pair<F>, Pair<F>)>(
        "{ .reg .pred %q; setp." + text + "x2 %pd|%q, %a, %b; and.pred %pd, %pd, %q; }", [&](Pair<F> a, Pair<F> b) {
          return function(value_of(a.low), value_of(b.low)) && function(value_of(a.high), value_of(b.high));
        });
    check<Pair<F>(Pair<F>, Pair<F>)>(
        "set." + std::string(relation) + type + "x2" + type + "x2", [&](Pair<F> a, Pair<F> b) {
          auto number = [&](F x, F y) { return rounded<F>(function(value_of(x), value_of(y))); };
          return Pair<F>{number(a.low, b.low), number(a.high, b.high)};
        });
  };
  one("eq", [](double a, double b) { return a == b; });
  one("lt", [](double a, double b) { return a < b; });
  one("ge", [](double a, double b) { return a >= b; });
  one("neu", [](double a, double b) { return a != b; });
  one("gtu", [](double a, double b) { return !(a <= b); });
  one("nan", [](double a, double b) { return std::isnan(a) || std::isnan(b); });
}

Half flushed(Half a) { return std::fabs(value_of(a)) < 0x1p-14 ? rounded<Half>(std::copysign(0.0, value_of(a))) : a; }

Half flushed_result(double exact) {
  return std::fabs(exact) < 0x1p-14 ? rounded<Half>(std::copysign(0.0, exact)) : rounded<Half>(exact);
}

}  // namespace

TEST_CASE("arithmetic of f16") {
  Context context;
  check_arithmetic<Half>(".f16", "");
  check_arithmetic<Half>(".f16", ".rn");
}

TEST_CASE("arithmetic of bf16") {
  Context context;
  check_arithmetic<Bfloat>(".bf16", "");
}

TEST_CASE("comparisons of f16") {
  Context context;
  check_comparisons<Half>(".f16");
}

TEST_CASE("comparisons of bf16") {
  Context context;
  check_comparisons<Bfloat>(".bf16");
}

TEST_CASE("f16 with flushing and saturation") {
  Context context;
  using F = Half;
  check_binary<F>("mul.ftz", ".f16",
                  [](F a, F b) { return flushed_result(value_of(flushed(a)) * value_of(flushed(b))); });
  check_binary<F>("add.ftz", ".f16",
                  [](F a, F b) { return flushed_result(value_of(flushed(a)) + value_of(flushed(b))); });
  auto saturated = [](double value) { return rounded<F>(value > 0 ? std::min(value, 1.0) : 0.0); };
  check_binary<F>("add.sat", ".f16", [&](F a, F b) { return saturated(value_of(a) + value_of(b)); });
  check_binary<F>("mul.sat", ".f16", [&](F a, F b) { return saturated(value_of(a) * value_of(b)); });
}

TEST_CASE("approximations of f16 and bf16") {
  Context context;
  // One place of the result, and half a place of its subnormal numbers.
  check_near<Half(Half)>("ex2.approx.f16", 0x1p-9, 0x1p-24,
                         [](Half a) { return value_of(rounded<Half>(std::exp2(value_of(a)))); });
  check_near<Half(Half)>("tanh.approx.f16", 0x1p-9, 0x1p-24, [](Half a) { return std::tanh(value_of(a)); });
  check_near<Bfloat(Bfloat)>("ex2.approx.ftz.bf16", 0x1p-7, 0x1p-126,
                             [](Bfloat a) { return value_of(rounded<Bfloat>(std::exp2(value_of(a)))); });
  check_near<Bfloat(Bfloat)>("tanh.approx.bf16", 0x1p-7, 0x1p-126, [](Bfloat a) { return std::tanh(value_of(a)); });
}
