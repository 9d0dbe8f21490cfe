#include "exec/ops/float.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "exec/float_format.h"

namespace fargpu::softgpu::ops {
namespace {

constexpr uint32_t f32_nan = 0x7fffffff;

/// Flushes a subnormal number to zero of its sign.
template <bool flush>
float flushed(float value) {
  if constexpr (!flush) return value;
  uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
}

// What is below the least normal number before it is rounded counts as subnormal, even if it is
// rounded up to that. Sums of two numbers need no such care: there they are exact.
constexpr double least_normal = 0x1p-126;

template <bool flush>
float flushed_if(bool is_tiny, float value) {
  return flush && is_tiny ? std::copysign(0.0f, value) : value;
}

/// True if the exact sum is below the least normal number.
bool is_sum_tiny(double a, double b) {
  double sum = a + b;
  if (std::fabs(sum) != least_normal) return std::fabs(sum) < least_normal;
  double part = sum - a, error = (a - (sum - part)) + (b - part);
  return sum > 0 ? error < 0 : error > 0;
}

/// A result as single-precision instructions give it: one NaN only, flushed, and with .sat between
/// 0 and 1 where NaN becomes 0.
template <bool flush, bool saturate>
float result(float value) {
  if constexpr (saturate) return value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f;
  return value == value ? flushed<flush>(value) : std::bit_cast<float>(f32_nan);
}

template <bool flush, bool saturate>
struct AddF32 {
  static float apply(float a, float b) { return result<flush, saturate>(flushed<flush>(a) + flushed<flush>(b)); }
};
template <bool flush, bool saturate>
struct SubtractF32 {
  static float apply(float a, float b) { return result<flush, saturate>(flushed<flush>(a) - flushed<flush>(b)); }
};
template <bool flush, bool saturate>
struct MultiplyF32 {
  static float apply(float a, float b) {
    a = flushed<flush>(a);
    b = flushed<flush>(b);
    bool is_tiny = flush && std::fabs(double{a} * b) < least_normal;
    return result<flush, saturate>(flushed_if<flush>(is_tiny, a * b));
  }
};
template <bool flush, bool saturate>
struct FmaF32 {
  static float apply(float a, float b, float c) {
    a = flushed<flush>(a);
    b = flushed<flush>(b);
    c = flushed<flush>(c);
    bool is_tiny = flush && is_sum_tiny(double{a} * b, c);
    return result<flush, saturate>(flushed_if<flush>(is_tiny, __builtin_fmaf(a, b, c)));
  }
};
template <bool flush, bool>
struct DivideF32 {
  static float apply(float a, float b) {
    a = flushed<flush>(a);
    b = flushed<flush>(b);
    bool is_tiny = flush && std::fabs(a) < least_normal * std::fabs(b);
    return result<flush, false>(flushed_if<flush>(is_tiny, a / b));
  }
};
template <bool flush, bool>
struct SquareRootF32 {
  static float apply(float a) { return result<flush, false>(__builtin_sqrtf(flushed<flush>(a))); }
};
template <bool flush, bool>
struct ReciprocalF32 {
  static float apply(float a) { return result<flush, false>(1.0f / flushed<flush>(a)); }
};

struct AddF64 {
  static double apply(double a, double b) { return a + b; }
};
struct SubtractF64 {
  static double apply(double a, double b) { return a - b; }
};
struct MultiplyF64 {
  static double apply(double a, double b) { return a * b; }
};
struct FmaF64 {
  static double apply(double a, double b, double c) { return __builtin_fma(a, b, c); }
};
struct DivideF64 {
  static double apply(double a, double b) { return a / b; }
};
struct SquareRootF64 {
  static double apply(double a) { return __builtin_sqrt(a); }
};
struct ReciprocalF64 {
  static double apply(double a) { return 1.0 / a; }
};

// ---- 16-bit formats: exact or nearly exact in double, then rounded once --------------------------------------------

template <class T, bool flush>
T flushed_short(T value) {
  constexpr uint16_t sign = T::Format::sign_bit;
  if constexpr (flush)
    if ((value.bits & T::Format::infinity) == 0) value.bits &= sign;
  return value;
}

/// Below this numbers are subnormal; what is before rounding counts, as in single precision.
template <class Format>
constexpr double least_normal_of = Format::bias == 15 ? 0x1p-14 : 0x1p-126;

enum class Clamp { none, saturate, relu };

template <class T, bool flush, Clamp clamp>
T short_result(double value) {
  if constexpr (clamp == Clamp::saturate) value = value > 0 ? (value < 1 ? value : 1.0) : 0.0;
  if constexpr (clamp == Clamp::relu)
    if (value <= 0) value = 0.0;
  constexpr double least = least_normal_of<typename T::Format>;
  if (flush && std::fabs(value) < least) value = std::copysign(0.0, value);
  return flushed_short<T, flush>(round_to<T>(value));
}

template <class T, bool flush, Clamp clamp>
struct AddShort {
  static T apply(T a, T b) {
    return short_result<T, flush, clamp>(to_double(flushed_short<T, flush>(a)) + to_double(flushed_short<T, flush>(b)));
  }
};
template <class T, bool flush, Clamp clamp>
struct SubtractShort {
  static T apply(T a, T b) {
    return short_result<T, flush, clamp>(to_double(flushed_short<T, flush>(a)) - to_double(flushed_short<T, flush>(b)));
  }
};
template <class T, bool flush, Clamp clamp>
struct MultiplyShort {
  static T apply(T a, T b) {
    return short_result<T, flush, clamp>(to_double(flushed_short<T, flush>(a)) * to_double(flushed_short<T, flush>(b)));
  }
};
template <class T, bool flush, Clamp clamp>
struct FmaShort {
  static T apply(T a, T b, T c) {
    double product = to_double(flushed_short<T, flush>(a)) * to_double(flushed_short<T, flush>(b));
    return short_result<T, flush, clamp>(add_to_odd(product, to_double(flushed_short<T, flush>(c))));
  }
};

/// An operation on each half of a register that holds two 16-bit numbers.
template <class Op, class T>
struct PairOf {
  static T low(uint32_t pair) { return {static_cast<uint16_t>(pair)}; }
  static T high(uint32_t pair) { return {static_cast<uint16_t>(pair >> 16)}; }
  static uint32_t join(T low, T high) { return low.bits | static_cast<uint32_t>(high.bits) << 16; }
};
template <class Op, class T>
struct UnaryPair : PairOf<Op, T> {
  using P = PairOf<Op, T>;
  static uint32_t apply(uint32_t a) { return P::join(Op::apply(P::low(a)), Op::apply(P::high(a))); }
};
template <class Op, class T>
struct BinaryPair : PairOf<Op, T> {
  using P = PairOf<Op, T>;
  static uint32_t apply(uint32_t a, uint32_t b) {
    return P::join(Op::apply(P::low(a), P::low(b)), Op::apply(P::high(a), P::high(b)));
  }
};
template <class Op, class T>
struct TernaryPair : PairOf<Op, T> {
  using P = PairOf<Op, T>;
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    return P::join(Op::apply(P::low(a), P::low(b), P::low(c)), Op::apply(P::high(a), P::high(b), P::high(c)));
  }
};

// ---- minimum and maximum -------------------------------------------------------------------------------------------

template <class T>
struct MinMaxTraits;
template <>
struct MinMaxTraits<float> {
  using Bits = uint32_t;
  static constexpr Bits sign = 0x80000000;
  static bool is_nan(float v) { return v != v; }
  static float nan_of(float) { return std::bit_cast<float>(f32_nan); }
  static double number(float v) { return v; }
};
template <>
struct MinMaxTraits<double> {
  using Bits = uint64_t;
  static constexpr Bits sign = Bits{1} << 63;
  static bool is_nan(double v) { return v != v; }
  static double nan_of(double v) { return std::bit_cast<double>(std::bit_cast<Bits>(v) | 0x0008000000000000); }
  static double number(double v) { return v; }
};
template <class T>
struct ShortMinMaxTraits {
  using Bits = uint16_t;
  static constexpr Bits sign = T::Format::sign_bit;
  static bool is_nan(T v) { return (v.bits & ~sign) > T::Format::infinity; }
  static T nan_of(T) { return {T::Format::nan}; }
  static double number(T v) { return to_double(v); }
};
template <>
struct MinMaxTraits<Half> : ShortMinMaxTraits<Half> {};
template <>
struct MinMaxTraits<Bfloat> : ShortMinMaxTraits<Bfloat> {};

/// PTX ISA: min, max. A NaN loses against a number unless .NaN is given; +0 is above -0. Of two
/// NaNs the f64 forms give the second, the others the canonical one.
template <class T, bool is_max, bool propagate_nan, bool sign_xor_abs>
struct MinMax {
  using Traits = MinMaxTraits<T>;
  using Bits = typename Traits::Bits;
  static T apply(T a, T b) {
    Bits a_bits = std::bit_cast<Bits>(a), b_bits = std::bit_cast<Bits>(b);
    Bits sign = 0;
    if constexpr (sign_xor_abs) {
      sign = (a_bits ^ b_bits) & Traits::sign;
      a = std::bit_cast<T>(static_cast<Bits>(a_bits & ~Traits::sign));
      b = std::bit_cast<T>(static_cast<Bits>(b_bits & ~Traits::sign));
    }
    bool is_a_nan = Traits::is_nan(a), is_b_nan = Traits::is_nan(b);
    if ((is_a_nan && is_b_nan) || (propagate_nan && (is_a_nan || is_b_nan))) return Traits::nan_of(b);
    T chosen;
    if (is_a_nan || is_b_nan) {
      chosen = is_a_nan ? b : a;
    } else {
      double x = Traits::number(a), y = Traits::number(b);
      bool a_is_less = x < y || (x == y && (std::bit_cast<Bits>(a) & Traits::sign) != 0);
      chosen = a_is_less != is_max ? a : b;
    }
    return std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(chosen) | sign));
  }
};

template <bool is_max, bool propagate_nan, bool sign_xor_abs>
struct MinMaxFlush {
  static float apply(float a, float b) {
    return MinMax<float, is_max, propagate_nan, sign_xor_abs>::apply(flushed<true>(a), flushed<true>(b));
  }
};

// ---- signs ---------------------------------------------------------------------------------------------------------

/// What neg and abs give for a NaN: the canonical one, in double precision that one quieted.
template <class T>
struct SignTraits {
  using Bits = uint16_t;
  static constexpr Bits sign = 0x8000, infinity = T::Format::infinity;
  static Bits nan_of(Bits) { return T::Format::nan; }
};
template <>
struct SignTraits<float> {
  using Bits = uint32_t;
  static constexpr Bits sign = 0x80000000, infinity = 0x7f800000;
  static Bits nan_of(Bits) { return f32_nan; }
};
template <>
struct SignTraits<double> {
  using Bits = uint64_t;
  static constexpr Bits sign = Bits{1} << 63, infinity = 0x7ff0000000000000;
  static Bits nan_of(Bits nan) { return nan | 0x0008000000000000; }
};

template <class T, bool clears_sign>
struct ChangeSign {
  using Traits = SignTraits<T>;
  using Bits = typename Traits::Bits;
  static T apply(T value) {
    Bits bits = std::bit_cast<Bits>(value);
    Bits magnitude = bits & static_cast<Bits>(~Traits::sign);
    Bits changed = clears_sign ? magnitude : static_cast<Bits>(bits ^ Traits::sign);
    return std::bit_cast<T>(magnitude > Traits::infinity ? Traits::nan_of(bits) : changed);
  }
};
template <class T>
using Negate = ChangeSign<T, false>;
template <class T>
using Absolute = ChangeSign<T, true>;

template <class Op>
struct FlushThen {
  static float apply(float a) { return Op::apply(flushed<true>(a)); }
};
template <class Bits, Bits sign>
struct CopySign {
  static Bits apply(Bits sign_of, Bits value) { return (sign_of & sign) | (value & static_cast<Bits>(~sign)); }
};

template <class T, FloatClass property>
struct TestProperty {
  static bool apply(T value) {
    int kind = std::fpclassify(value);
    switch (property) {
      case FloatClass::finite: return kind != FP_NAN && kind != FP_INFINITE;
      case FloatClass::infinite: return kind == FP_INFINITE;
      case FloatClass::number: return kind != FP_NAN;
      case FloatClass::not_a_number: return kind == FP_NAN;
      case FloatClass::normal: return kind == FP_NORMAL || kind == FP_ZERO;
      case FloatClass::subnormal: return kind == FP_SUBNORMAL;
    }
    return false;
  }
};

// ---- approximations ------------------------------------------------------------------------------------------------

/// As the hardware does it: the angle in turns is rounded, so the result of a large angle is only
/// as good as that. PTX ISA, sin: the error is bounded up to 100 pi.
double fraction_of_turn(double angle) {
  float turns = static_cast<float>(angle) * 0x1.45f306p-3f;
  float whole = std::rint(turns);
  return (whole == 0 ? turns : turns - whole) * 6.283185307179586;  // keeps the sign of zero
}

template <Approximation function, class T>
T evaluate(T a) {
  switch (function) {
    case Approximation::reciprocal: return static_cast<T>(1.0 / static_cast<double>(a));
    case Approximation::reciprocal_sqrt: return static_cast<T>(1.0 / std::sqrt(static_cast<double>(a)));
    case Approximation::square_root: return std::sqrt(a);
    case Approximation::sine: return static_cast<T>(std::sin(fraction_of_turn(a)));
    case Approximation::cosine: return static_cast<T>(std::cos(fraction_of_turn(a)));
    case Approximation::log2: return std::log2(a);
    case Approximation::exp2: return std::exp2(a);
    case Approximation::tanh: return std::tanh(a);
    case Approximation::divide: break;
  }
  return 0;
}

template <Approximation function, bool flush>
struct ApproximateF32 {
  static float apply(float a) { return result<flush, false>(evaluate<function>(flushed<flush>(a))); }
};
template <bool flush>
struct ApproximateDivideF32 {
  static float apply(float a, float b) {
    a = flushed<flush>(a);
    b = flushed<flush>(b);
    // PTX ISA, div.approx: divisors whose reciprocal would be subnormal count as infinite.
    constexpr float largest = std::numeric_limits<float>::max();
    bool is_beyond = std::fabs(b) > 0x1p126f && std::fabs(b) <= largest;
    return result<flush, false>(is_beyond ? a * std::copysign(0.0f, b) : a / b);
  }
};

/// The f64 forms look at the upper 32 bits of the operand only, flush subnormal numbers, and give
/// the upper 32 bits of the result.
template <Approximation function, bool flush>
struct ApproximateF64 {
  static double apply(double a) {
    constexpr uint64_t upper = 0xffffffff00000000, sign = uint64_t{1} << 63;
    uint64_t bits = std::bit_cast<uint64_t>(a);
    if (std::isnan(a)) return std::bit_cast<double>(uint64_t{0x7fffffff00000000});
    bits &= upper;
    if (flush && (bits & 0x7ff0000000000000) == 0) bits &= sign;
    double value = evaluate<function>(std::bit_cast<double>(bits));
    if (std::isnan(value)) return std::bit_cast<double>(uint64_t{0x7fffffff00000000});
    bits = std::bit_cast<uint64_t>(value) & upper;
    if (flush && (bits & 0x7ff0000000000000) == 0) bits &= sign;
    return std::bit_cast<double>(bits);
  }
};

/// rsqrt.approx.f64 without .ftz is as accurate as the f64 functions of the math library.
struct ReciprocalSquareRootF64 {
  static double apply(double a) { return 1.0 / std::sqrt(a); }
};

template <class T, Approximation function, bool flush>
struct ApproximateShort {
  static T apply(T a) {
    return flushed_short<T, flush>(round_to<T>(evaluate<function>(to_double(flushed_short<T, flush>(a)))));
  }
};

// ---- choosing ------------------------------------------------------------------------------------------------------

/// The f32 forms of an operation; `saturates` if there is one with .sat.
template <template <bool, bool> class Op, bool saturates>
Handler f32_with_rounding(const FloatForm& form) {
  if (form.rounding == Rounding::nearest_even && !form.saturate)
    return form.flush ? elementwise<Op<true, false>>() : elementwise<Op<false, false>>();
  auto choose = [&]<Rounding rounding>() -> Handler {
    if constexpr (saturates)
      if (form.saturate)
        return form.flush ? scalar_elementwise<Op<true, true>, rounding>()
                          : scalar_elementwise<Op<false, true>, rounding>();
    return form.flush ? scalar_elementwise<Op<true, false>, rounding>()
                      : scalar_elementwise<Op<false, false>, rounding>();
  };
  switch (form.rounding) {
    case Rounding::nearest_even: return choose.template operator()<Rounding::nearest_even>();
    case Rounding::toward_zero: return choose.template operator()<Rounding::toward_zero>();
    case Rounding::down: return choose.template operator()<Rounding::down>();
    case Rounding::up: return choose.template operator()<Rounding::up>();
  }
  return nullptr;
}

template <class Op>
Handler f64_with_rounding(const FloatForm& form) {
  if (form.flush || form.saturate || form.relu) return nullptr;
  switch (form.rounding) {
    case Rounding::nearest_even: return elementwise<Op>();
    case Rounding::toward_zero: return scalar_elementwise<Op, Rounding::toward_zero>();
    case Rounding::down: return scalar_elementwise<Op, Rounding::down>();
    case Rounding::up: return scalar_elementwise<Op, Rounding::up>();
  }
  return nullptr;
}

template <template <class, bool, Clamp> class Op, template <class, class> class Pair, class T, bool flush, Clamp clamp>
Handler single_or_pair(bool is_pair) {
  using Single = Op<T, flush, clamp>;
  if constexpr (flush || clamp != Clamp::none)
    return is_pair ? scalar_elementwise<Pair<Single, T>>() : scalar_elementwise<Single>();
  return is_pair ? elementwise<Pair<Single, T>>() : elementwise<Single>();
}

/// f16, f16x2, bf16 and bf16x2 forms of an operation; only rounding to nearest exists.
template <template <class, bool, Clamp> class Op, template <class, class> class Pair>
Handler short_float(const FloatForm& form) {
  if (form.rounding != Rounding::nearest_even || (form.saturate && form.relu)) return nullptr;
  bool is_pair = form.type == Type::f16x2 || form.type == Type::bf16x2;
  if (form.type == Type::f16 || form.type == Type::f16x2) {
    if (form.flush) {
      if (form.saturate) return single_or_pair<Op, Pair, Half, true, Clamp::saturate>(is_pair);
      if (form.relu) return single_or_pair<Op, Pair, Half, true, Clamp::relu>(is_pair);
      return single_or_pair<Op, Pair, Half, true, Clamp::none>(is_pair);
    }
    if (form.saturate) return single_or_pair<Op, Pair, Half, false, Clamp::saturate>(is_pair);
    if (form.relu) return single_or_pair<Op, Pair, Half, false, Clamp::relu>(is_pair);
    return single_or_pair<Op, Pair, Half, false, Clamp::none>(is_pair);
  }
  if (form.type == Type::bf16 || form.type == Type::bf16x2) {
    if (form.flush || form.saturate) return nullptr;
    if (form.relu) return single_or_pair<Op, Pair, Bfloat, false, Clamp::relu>(is_pair);
    return single_or_pair<Op, Pair, Bfloat, false, Clamp::none>(is_pair);
  }
  return nullptr;
}

template <template <bool, bool> class F32, class F64, template <class, bool, Clamp> class Short,
          template <class, class> class Pair>
Handler arithmetic(const FloatForm& form) {
  if (form.type == Type::f32) return form.relu ? nullptr : f32_with_rounding<F32, true>(form);
  if (form.type == Type::f64) return f64_with_rounding<F64>(form);
  return short_float<Short, Pair>(form);
}

template <class T, bool is_max, template <class, class> class Wrap>
Handler min_max_of(const MinMaxForm& form) {
  if (form.propagate_nan)
    return form.sign_xor_abs ? scalar_elementwise<Wrap<MinMax<T, is_max, true, true>, T>>()
                             : elementwise<Wrap<MinMax<T, is_max, true, false>, T>>();
  return form.sign_xor_abs ? scalar_elementwise<Wrap<MinMax<T, is_max, false, true>, T>>()
                           : elementwise<Wrap<MinMax<T, is_max, false, false>, T>>();
}

/// An operation on a register that holds one number.
template <class Op, class>
struct Single : Op {};

template <bool is_max>
Handler min_max_flush(const MinMaxForm& form) {
  if (form.propagate_nan)
    return form.sign_xor_abs ? scalar_elementwise<MinMaxFlush<is_max, true, true>>()
                             : scalar_elementwise<MinMaxFlush<is_max, true, false>>();
  return form.sign_xor_abs ? scalar_elementwise<MinMaxFlush<is_max, false, true>>()
                           : elementwise<MinMaxFlush<is_max, false, false>>();
}

template <bool is_max>
Handler min_max(const MinMaxForm& form) {
  switch (form.type) {
    case Type::f32: return form.flush ? min_max_flush<is_max>(form) : min_max_of<float, is_max, Single>(form);
    case Type::f64:
      return form.flush || form.propagate_nan || form.sign_xor_abs
                 ? nullptr
                 : elementwise<MinMax<double, is_max, false, false>>();
    // Flushing makes no difference to which of two numbers is larger beyond zeros, but does to
    // the result; compilers do not emit it for these types.
    case Type::f16: return form.flush ? nullptr : min_max_of<Half, is_max, Single>(form);
    case Type::f16x2: return form.flush ? nullptr : min_max_of<Half, is_max, BinaryPair>(form);
    case Type::bf16: return form.flush ? nullptr : min_max_of<Bfloat, is_max, Single>(form);
    case Type::bf16x2: return form.flush ? nullptr : min_max_of<Bfloat, is_max, BinaryPair>(form);
    default: return nullptr;
  }
}

template <template <class> class Op>
Handler sign_operation(Type type, bool flush) {
  if (flush) return type == Type::f32 ? elementwise<FlushThen<Op<float>>>() : nullptr;
  switch (type) {
    case Type::f32: return elementwise<Op<float>>();
    case Type::f64: return elementwise<Op<double>>();
    case Type::f16: return elementwise<Op<Half>>();
    case Type::bf16: return elementwise<Op<Bfloat>>();
    case Type::f16x2: return elementwise<UnaryPair<Op<Half>, Half>>();
    case Type::bf16x2: return elementwise<UnaryPair<Op<Bfloat>, Bfloat>>();
    default: return nullptr;
  }
}

template <class T>
Handler test_property_of(FloatClass property) {
  switch (property) {
    case FloatClass::finite: return scalar_elementwise<TestProperty<T, FloatClass::finite>>();
    case FloatClass::infinite: return scalar_elementwise<TestProperty<T, FloatClass::infinite>>();
    case FloatClass::number: return scalar_elementwise<TestProperty<T, FloatClass::number>>();
    case FloatClass::not_a_number: return scalar_elementwise<TestProperty<T, FloatClass::not_a_number>>();
    case FloatClass::normal: return scalar_elementwise<TestProperty<T, FloatClass::normal>>();
    case FloatClass::subnormal: return scalar_elementwise<TestProperty<T, FloatClass::subnormal>>();
  }
  return nullptr;
}

template <Approximation function, bool flush>
Handler approximate_short(Type type) {
  using HalfOp = ApproximateShort<Half, function, flush>;
  using BfloatOp = ApproximateShort<Bfloat, function, flush>;
  switch (type) {
    case Type::f16: return scalar_elementwise<HalfOp>();
    case Type::f16x2: return scalar_elementwise<UnaryPair<HalfOp, Half>>();
    case Type::bf16: return scalar_elementwise<BfloatOp>();
    case Type::bf16x2: return scalar_elementwise<UnaryPair<BfloatOp, Bfloat>>();
    default: return nullptr;
  }
}

template <Approximation function>
Handler approximate_f32(bool flush) {
  constexpr bool has_vectors = function == Approximation::reciprocal || function == Approximation::reciprocal_sqrt ||
                               function == Approximation::square_root;
  if constexpr (!has_vectors)
    return flush ? scalar_elementwise<ApproximateF32<function, true>>()
                 : scalar_elementwise<ApproximateF32<function, false>>();
  return flush ? elementwise<ApproximateF32<function, true>>() : elementwise<ApproximateF32<function, false>>();
}

template <Approximation function>
Handler approximate_f32_or_short(Type type, bool flush) {
  if (type == Type::f32) return approximate_f32<function>(flush);
  return flush ? approximate_short<function, true>(type) : approximate_short<function, false>(type);
}

template <Approximation function>
Handler approximate_f32_or_f64(Type type, bool flush) {
  if (type == Type::f32) return approximate_f32<function>(flush);
  if (type != Type::f64) return nullptr;
  if (flush) return scalar_elementwise<ApproximateF64<function, true>>();
  return function == Approximation::reciprocal_sqrt ? elementwise<ReciprocalSquareRootF64>() : nullptr;
}

}  // namespace

Handler float_add(const FloatForm& form) { return arithmetic<AddF32, AddF64, AddShort, BinaryPair>(form); }
Handler float_subtract(const FloatForm& form) {
  return arithmetic<SubtractF32, SubtractF64, SubtractShort, BinaryPair>(form);
}
Handler float_multiply(const FloatForm& form) {
  return arithmetic<MultiplyF32, MultiplyF64, MultiplyShort, BinaryPair>(form);
}
Handler float_fma(const FloatForm& form) { return arithmetic<FmaF32, FmaF64, FmaShort, TernaryPair>(form); }

Handler float_divide(const FloatForm& form) {
  if (form.saturate || form.relu) return nullptr;
  if (form.type == Type::f32) return f32_with_rounding<DivideF32, false>(form);
  return form.type == Type::f64 ? f64_with_rounding<DivideF64>(form) : nullptr;
}
Handler float_square_root(const FloatForm& form) {
  if (form.saturate || form.relu) return nullptr;
  if (form.type == Type::f32) return f32_with_rounding<SquareRootF32, false>(form);
  return form.type == Type::f64 ? f64_with_rounding<SquareRootF64>(form) : nullptr;
}
Handler float_reciprocal(const FloatForm& form) {
  if (form.saturate || form.relu) return nullptr;
  if (form.type == Type::f32) return f32_with_rounding<ReciprocalF32, false>(form);
  return form.type == Type::f64 ? f64_with_rounding<ReciprocalF64>(form) : nullptr;
}

Handler float_min_max(const MinMaxForm& form) { return form.is_max ? min_max<true>(form) : min_max<false>(form); }

Handler float_negate(Type type, bool flush) { return sign_operation<Negate>(type, flush); }
Handler float_absolute(Type type, bool flush) { return sign_operation<Absolute>(type, flush); }

Handler copy_sign(Type type) {
  if (type == Type::f32) return elementwise<CopySign<uint32_t, 0x80000000>>();
  return type == Type::f64 ? elementwise<CopySign<uint64_t, uint64_t{1} << 63>>() : nullptr;
}

Handler test_property(FloatClass property, Type type) {
  if (type == Type::f32) return test_property_of<float>(property);
  return type == Type::f64 ? test_property_of<double>(property) : nullptr;
}

Handler approximate(Approximation function, Type type, bool flush) {
  switch (function) {
    case Approximation::reciprocal: return approximate_f32_or_f64<Approximation::reciprocal>(type, flush);
    case Approximation::reciprocal_sqrt: return approximate_f32_or_f64<Approximation::reciprocal_sqrt>(type, flush);
    case Approximation::square_root:
      return type == Type::f32 ? approximate_f32<Approximation::square_root>(flush) : nullptr;
    case Approximation::divide:
      if (type != Type::f32) return nullptr;
      return flush ? elementwise<ApproximateDivideF32<true>>() : elementwise<ApproximateDivideF32<false>>();
    case Approximation::sine: return type == Type::f32 ? approximate_f32<Approximation::sine>(flush) : nullptr;
    case Approximation::cosine: return type == Type::f32 ? approximate_f32<Approximation::cosine>(flush) : nullptr;
    case Approximation::log2: return type == Type::f32 ? approximate_f32<Approximation::log2>(flush) : nullptr;
    case Approximation::exp2: return approximate_f32_or_short<Approximation::exp2>(type, flush);
    case Approximation::tanh: return approximate_f32_or_short<Approximation::tanh>(type, flush);
  }
  return nullptr;
}

}  // namespace fargpu::softgpu::ops
