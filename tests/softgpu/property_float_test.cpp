// Floating-point instructions (PTX ISA 9.7.3 and 9.7.4) and comparisons of their numbers.

#include <functional>

#include "property.h"

using namespace softgpu_tests;

namespace {

struct NamedRound {
  const char* name;
  Round mode;
};
constexpr NamedRound rounds[] = {
    {".rn", Round::nearest}, {".rz", Round::zero}, {".rm", Round::down}, {".rp", Round::up}};

constexpr double least_normal = 0x1p-126;

float flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }
float saturated(float value) { return value > 0 ? (value < 1 ? value : 1.0f) : 0.0f; }

template <class T>
std::string suffix() {
  return sizeof(T) == 4 ? ".f32" : ".f64";
}

/// What single precision with .ftz makes of a result: tininess is found before rounding.
float flushed_result(float value, double exact) {
  return std::fabs(exact) < least_normal ? std::copysign(0.0f, value) : value;
}

template <class T>
void check_rounded() {
  for (const NamedRound& round : rounds) {
    std::string end = round.name + suffix<T>();
    Round mode = round.mode;
    check<T(T, T)>("add" + end, [&](T a, T b) { return under(mode, std::plus<T>(), a, b); });
    check<T(T, T)>("sub" + end, [&](T a, T b) { return under(mode, std::minus<T>(), a, b); });
    check<T(T, T)>("mul" + end, [&](T a, T b) { return under(mode, std::multiplies<T>(), a, b); });
    check<T(T, T)>("div" + end, [&](T a, T b) { return under(mode, std::divides<T>(), a, b); });
    check<T(T)>("rcp" + end, [&](T a) { return under(mode, std::divides<T>(), T{1}, a); });
    check<T(T, T, T)>("fma" + end, [&](T a, T b, T c) {
      return under(
          mode, [](T x, T y, T z) { return std::fma(x, y, z); }, a, b, c);
    });
    check<T(T)>("sqrt" + end, [&](T a) {
      return under(
          mode, [](T x) { return std::sqrt(x); }, a);
    });
  }
}

template <class T>
T least(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  if (a == 0 && b == 0) return std::signbit(a) ? a : b;
  return std::min(a, b);
}

template <class T>
T most(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  if (a == 0 && b == 0) return std::signbit(a) ? b : a;
  return std::max(a, b);
}

template <class T>
void check_signs_and_order() {
  std::string t = suffix<T>();
  check<T(T)>("neg" + t, [](T a) { return -a; });
  check<T(T)>("abs" + t, [](T a) { return std::fabs(a); });
  check<T(T, T)>("min" + t, least<T>);
  check<T(T, T)>("max" + t, most<T>);
  check<T(T, T)>("copysign" + t, [](T a, T b) { return std::copysign(b, a); });
  check<bool(T)>("testp.finite" + t + " %pd, %a;", [](T a) { return std::isfinite(a); });
  check<bool(T)>("testp.infinite" + t + " %pd, %a;", [](T a) { return std::isinf(a); });
  check<bool(T)>("testp.number" + t + " %pd, %a;", [](T a) { return !std::isnan(a); });
  check<bool(T)>("testp.notanumber" + t + " %pd, %a;", [](T a) { return std::isnan(a); });
  check<bool(T)>("testp.normal" + t + " %pd, %a;", [](T a) { return std::isnormal(a) || a == 0; });
  check<bool(T)>("testp.subnormal" + t + " %pd, %a;", [](T a) { return std::fpclassify(a) == FP_SUBNORMAL; });
  check<T(T, T, bool)>("selp" + t + " %d, %a, %b, %pc;", [](T a, T b, bool c) { return c ? a : b; });
  check<T(T, T, float)>("slct" + t + ".f32", [](T a, T b, float c) { return c >= 0 ? a : b; });
  auto compare = [&](const char* relation, auto function) {
    check<bool(T, T)>("setp." + std::string(relation) + t + " %pd, %a, %b;", function);
    check<uint32_t(T, T)>("set." + std::string(relation) + ".u32" + t,
                          [&](T a, T b) { return function(a, b) ? ~0u : 0u; });
    check<bool(T, T, bool)>("setp." + std::string(relation) + ".or" + t + " %pd, %a, %b, %pc;",
                            [&](T a, T b, bool c) { return function(a, b) || c; });
  };
  auto unordered = [](T a, T b) { return std::isnan(a) || std::isnan(b); };
  compare("eq", [](T a, T b) { return a == b; });
  compare("ne", [&](T a, T b) { return a != b && !unordered(a, b); });
  compare("lt", [](T a, T b) { return a < b; });
  compare("le", [](T a, T b) { return a <= b; });
  compare("gt", [](T a, T b) { return a > b; });
  compare("ge", [](T a, T b) { return a >= b; });
  compare("equ", [&](T a, T b) { return a == b || unordered(a, b); });
  compare("neu", [](T a, T b) { return a != b; });
  compare("ltu", [&](T a, T b) { return a < b || unordered(a, b); });
  compare("leu", [&](T a, T b) { return a <= b || unordered(a, b); });
  compare("gtu", [&](T a, T b) { return a > b || unordered(a, b); });
  compare("geu", [&](T a, T b) { return a >= b || unordered(a, b); });
  compare("num", [&](T a, T b) { return !unordered(a, b); });
  compare("nan", unordered);
}

}  // namespace

TEST_CASE("rounded arithmetic of single precision") {
  Context context;
  check_rounded<float>();
}

TEST_CASE("rounded arithmetic of double precision") {
  Context context;
  check_rounded<double>();
}

TEST_CASE("arithmetic that flushes subnormal numbers") {
  Context context;
  using T = float;
  check<T(T, T)>("add.ftz.f32", [](T a, T b) { return flushed(flushed(a) + flushed(b)); });
  check<T(T, T)>("sub.rz.ftz.f32",
                 [](T a, T b) { return flushed(under(Round::zero, std::minus<T>(), flushed(a), flushed(b))); });
  check<T(T, T)>("mul.ftz.f32", [](T a, T b) {
    a = flushed(a);
    b = flushed(b);
    return flushed_result(a * b, double{a} * b);
  });
  check<T(T, T, T)>("fma.rn.ftz.f32", [](T a, T b, T c) {
    a = flushed(a);
    b = flushed(b);
    c = flushed(c);
    // The product is exact, and truncating the sum keeps it on its side of the least normal number.
    double truncated = under(Round::zero, std::plus<double>(), double{a} * b, double{c});
    return flushed_result(std::fma(a, b, c), truncated);
  });
  check<T(T, T)>("div.rn.ftz.f32", [](T a, T b) {
    a = flushed(a);
    b = flushed(b);
    return flushed_result(a / b, double{a} / b);
  });
  check<T(T)>("sqrt.rn.ftz.f32", [](T a) { return std::sqrt(flushed(a)); });
  check<T(T)>("rcp.rn.ftz.f32", [](T a) { return flushed(1 / flushed(a)); });
  check<T(T)>("neg.ftz.f32", [](T a) { return -flushed(a); });
  check<T(T)>("abs.ftz.f32", [](T a) { return std::fabs(flushed(a)); });
  check<T(T, T)>("min.ftz.f32", [](T a, T b) { return least(flushed(a), flushed(b)); });
  check<T(T, T)>("max.ftz.f32", [](T a, T b) { return most(flushed(a), flushed(b)); });
  check<bool(T, T)>("setp.lt.ftz.f32 %pd, %a, %b;", [](T a, T b) { return flushed(a) < flushed(b); });
}

TEST_CASE("saturating arithmetic") {
  Context context;
  using T = float;
  check<T(T, T)>("add.sat.f32", [](T a, T b) { return saturated(a + b); });
  check<T(T, T)>("mul.ftz.sat.f32", [](T a, T b) {
    a = flushed(a);
    b = flushed(b);
    return saturated(flushed_result(a * b, double{a} * b));
  });
  check<T(T, T, T)>("fma.rn.sat.f32", [](T a, T b, T c) { return saturated(std::fma(a, b, c)); });
}

TEST_CASE("signs, order and classes") {
  Context context;
  check_signs_and_order<float>();
  check_signs_and_order<double>();
}

TEST_CASE("minimum and maximum of other kinds") {
  Context context;
  using T = float;
  auto any_nan = [](T a, T b) { return std::isnan(a) || std::isnan(b); };
  check<T(T, T)>("min.NaN.f32", [&](T a, T b) { return any_nan(a, b) ? NAN : least(a, b); });
  check<T(T, T)>("max.NaN.f32", [&](T a, T b) { return any_nan(a, b) ? NAN : most(a, b); });
  auto with_sign = [](T a, T b, T magnitude) { return std::signbit(a) != std::signbit(b) ? -magnitude : magnitude; };
  check<T(T, T)>("min.xorsign.abs.f32", [&](T a, T b) { return with_sign(a, b, least(std::fabs(a), std::fabs(b))); });
  check<T(T, T)>("max.xorsign.abs.f32", [&](T a, T b) { return with_sign(a, b, most(std::fabs(a), std::fabs(b))); });
}

// The bounds are those of the PTX ISA.
TEST_CASE("approximations of single precision") {
  Context context;
  using T = float;
  constexpr double one_place = 0x1p-23, least = std::numeric_limits<T>::denorm_min();
  auto representable = [](double value) { return double{static_cast<float>(value)}; };
  check_near<T(T)>("rcp.approx.f32", one_place, least, [&](T a) { return representable(1.0 / a); });
  check_near<T(T)>("rcp.approx.ftz.f32", one_place, 0,
                   [&](T a) { return flushed(static_cast<float>(1.0 / flushed(a))); });
  check_near<T(T)>("rsqrt.approx.f32", std::exp2(-22.9), 0, [](T a) { return 1.0 / std::sqrt(double{a}); });
  check_near<T(T)>("sqrt.approx.f32", one_place, least, [](T a) { return std::sqrt(double{a}); });
  check_near<T(T)>("ex2.approx.f32", 2 * one_place, 2 * least,
                   [&](T a) { return representable(std::exp2(double{a})); });
  check_within<T(T)>(
      "lg2.approx.f32", [](double exact, T a) { return 0x1p-22 * (a > 0.5f && a < 2 ? 1 : std::fabs(exact)); },
      [](T a) { return std::log2(double{a}); });
  check_near<T(T)>("tanh.approx.f32", 0x1p-11, 0, [](T a) { return std::tanh(double{a}); });
  check_near<T(T, T)>("div.full.f32", 2 * one_place, 2 * least, [&](T a, T b) { return representable(double{a} / b); });
  check_near<T(T, T)>("div.approx.f32", 2 * one_place, 2 * least, [&](T a, T b) {
    bool is_beyond = std::fabs(b) > 0x1p126f && std::isfinite(b);
    return representable(is_beyond ? a * std::copysign(0.0, double{b}) : double{a} / b);
  });
}

TEST_CASE("sine and cosine") {
  Context context;
  // Angles by their number of steps, so that all of a range is met.
  auto over = [](const char* function, const char* step, double step_value, double error) {
    std::string text = "{ .reg .f32 %x; cvt.rn.f32.s16 %x, %a; mul.f32 %x, %x, " + std::string(step) + "; " + function +
                       ".approx.f32 %d, %x; }";
    check_near<float(int16_t)>(text, 0, error, [&](int16_t a) {
      double x = static_cast<float>(a * step_value);
      return function[0] == 's' ? std::sin(x) : std::cos(x);
    });
  };
  for (const char* function : {"sin", "cos"}) {
    over(function, "0f39480000", 0x1.9p-13, std::exp2(-20.5));   // within 2 pi
    over(function, "0f3C19C000", 0x1.338p-7, std::exp2(-14.7));  // within 100 pi
  }
  // What has no angle, and zeros, whose sign stays.
  auto special = [](float a) { return std::isfinite(a) ? 0 * a : NAN; };
  std::string zeroed = "{ .reg .pred %q; testp.finite.f32 %q, %a; @%q mul.f32 %a, %a, 0f00000000; ";
  check<float(float)>(zeroed + "sin.approx.f32 %d, %a; }", special);
  check<float(float)>(zeroed + "cos.approx.f32 %d, %a; }", [&](float a) { return std::isfinite(a) ? 1.0f : NAN; });
}

TEST_CASE("approximations of double precision") {
  Context context;
  // They look at the upper half of the operand only.
  auto upper = [](double a) { return std::bit_cast<double>(std::bit_cast<uint64_t>(a) & 0xffffffff00000000); };
  auto flushed64 = [](double a) {
    return std::fabs(a) < std::numeric_limits<double>::min() ? std::copysign(0.0, a) : a;
  };
  check_near<double(double)>("rcp.approx.ftz.f64", 0x1p-19, 0,
                             [&](double a) { return std::isnan(a) ? a : flushed64(1 / flushed64(upper(a))); });
  check_near<double(double)>("rsqrt.approx.ftz.f64", 0x1p-19, 0,
                             [&](double a) { return std::isnan(a) ? a : 1 / std::sqrt(flushed64(upper(a))); });
  check_near<double(double)>("rsqrt.approx.f64", 1e-8, 0, [](double a) { return 1 / std::sqrt(a); });
}
