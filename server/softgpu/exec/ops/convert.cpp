#include "exec/ops/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "exec/ops/elementwise.h"

namespace fargpu::softgpu::ops {
namespace {

using Wide = unsigned __int128;

template <class T>
struct Copy {
  static T apply(T a) { return a; }
};
template <class To, class From>
struct Resize {
  static To apply(From a) { return static_cast<To>(a); }
};

template <class Whole, class Part, int count>
const Instruction* run_pack(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  Whole* result = warp.lanes<Whole>(instruction.operands[0]);
  const Part* parts[count];
  for (int i = 0; i < count; ++i) parts[i] = warp.lanes<Part>(instruction.operands[1 + i]);
  for_each_lane(lanes, [&](int lane) {
    Whole value = 0;
    for (int i = 0; i < count; ++i) value |= Whole{parts[i][lane]} << (8 * sizeof(Part) * i);
    result[lane] = value;
  });
  return &instruction + 1;
}

template <class Whole, class Part, int count>
const Instruction* run_unpack(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  Part* parts[count];
  for (int i = 0; i < count; ++i) parts[i] = warp.lanes<Part>(instruction.operands[i]);
  const Whole* source = warp.lanes<Whole>(instruction.operands[count]);
  for_each_lane(lanes, [&](int lane) {
    Whole value = source[lane];  // read first: a part may share its place
    for (int i = 0; i < count; ++i) parts[i][lane] = static_cast<Part>(value >> (8 * sizeof(Part) * i));
  });
  return &instruction + 1;
}

template <class T>
T round_to_integer(T value, RoundingMode mode) {
  switch (mode) {
    case RoundingMode::nearest_even: return __builtin_rint(value);
    case RoundingMode::toward_zero: return __builtin_trunc(value);
    case RoundingMode::down: return __builtin_floor(value);
    case RoundingMode::up: return __builtin_ceil(value);
    case RoundingMode::nearest_away: return __builtin_round(value);
  }
  return value;
}

/// What handlers need of a conversion, in Instruction::immediate.
struct ConvertFlags {
  RoundingMode mode;
  Type from;
  bool to_integer, flush_input, flush_result, saturate, saturate_finite, relu;

  static int64_t encode(const ConvertForm& form) {
    bool flush_input = form.flush && form.from == Type::f32;
    bool flush_result = form.flush && form.to == Type::f32;
    return static_cast<int64_t>(form.rounding) | form.round_to_integer << 8 | flush_input << 9 | flush_result << 10 |
           form.saturate << 11 | form.saturate_finite << 12 | form.relu << 13 | static_cast<int64_t>(form.from) << 16;
  }
  explicit ConvertFlags(int64_t code)
      : mode(static_cast<RoundingMode>(code & 0xff)),
        from(static_cast<Type>(code >> 16 & 0xff)),
        to_integer(code >> 8 & 1),
        flush_input(code >> 9 & 1),
        flush_result(code >> 10 & 1),
        saturate(code >> 11 & 1),
        saturate_finite(code >> 12 & 1),
        relu(code >> 13 & 1) {}

  double prepare(double value) const {
    if (flush_input && std::fabs(value) < 0x1p-126) value = std::copysign(0.0, value);
    if (to_integer) value = round_to_integer(value, mode);
    if (saturate) value = value > 0 ? (value < 1 ? value : 1.0) : 0.0;
    if (relu && value <= 0) value = 0.0;
    return value;
  }
};

// Conversions that compilers emit all the time are vector loops, one for each combination of types
// and rounding. The others look at types and rounding when they run.

// ---- integers ------------------------------------------------------------------------------------------------------

/// An integer of any type, which fits neither int64_t nor uint64_t alone.
__int128 read_integer(Warp& warp, OperandRef operand, Type type, int lane) {
  switch (type) {
    case Type::u8: return warp.lanes<uint8_t>(operand)[lane];
    case Type::u16: return warp.lanes<uint16_t>(operand)[lane];
    case Type::u32: return warp.lanes<uint32_t>(operand)[lane];
    case Type::u64: return warp.lanes<uint64_t>(operand)[lane];
    case Type::s8: return warp.lanes<int8_t>(operand)[lane];
    case Type::s16: return warp.lanes<int16_t>(operand)[lane];
    case Type::s32: return warp.lanes<int32_t>(operand)[lane];
    default: return warp.lanes<int64_t>(operand)[lane];
  }
}

template <class To>
const Instruction* run_saturate_integer(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  To* result = warp.lanes<To>(instruction.operands[0]);
  Type from = ConvertFlags(instruction.immediate).from;
  for_each_lane(lanes, [&](int lane) {
    __int128 value = read_integer(warp, instruction.operands[1], from, lane);
    result[lane] =
        static_cast<To>(std::clamp<__int128>(value, std::numeric_limits<To>::min(), std::numeric_limits<To>::max()));
  });
  return &instruction + 1;
}

template <class To, class From>
struct IntegerToFloat {
  static To apply(From value) { return static_cast<To>(value); }
};

/// An integer saturated to the range from 0 to 1.
template <class To>
const Instruction* run_integer_to_fraction(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  To* result = warp.lanes<To>(instruction.operands[0]);
  Type from = ConvertFlags(instruction.immediate).from;
  for_each_lane(lanes, [&](int lane) {
    result[lane] = read_integer(warp, instruction.operands[1], from, lane) > 0 ? To{1} : To{0};
  });
  return &instruction + 1;
}

template <class To>
const Instruction* run_integer_to_short(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  To* result = warp.lanes<To>(instruction.operands[0]);
  ConvertFlags flags(instruction.immediate);
  for_each_lane(lanes, [&](int lane) {
    // Integers beyond 2^53 are far above the largest half; for bf16 their low bits matter only as
    // being there or not.
    __int128 value = read_integer(warp, instruction.operands[1], flags.from, lane);
    auto low = static_cast<double>(static_cast<uint32_t>(value));
    double high = static_cast<double>(static_cast<int64_t>(value >> 32)) * 4294967296.0;
    result[lane] = round_to<To>(add_to_odd(high, low), flags.mode);
  });
  return &instruction + 1;
}

// ---- to integers ---------------------------------------------------------------------------------------------------

/// Out of range values become the nearest integer there is. So does NaN from f64, which counts as
/// 0x80000000 or 2^63; from other types it becomes zero or, for 64-bit results, 2^63.
template <class To, class From>
To clamp_to_integer(From rounded, bool is_from_f64) {
  constexpr From limit = static_cast<From>(uint64_t{1} << (std::numeric_limits<To>::digits - 1)) * 2;
  using Limits = std::numeric_limits<To>;
  To nan = sizeof(To) >= (is_from_f64 ? 4 : 8) ? static_cast<To>(uint64_t{1} << (8 * sizeof(To) - 1))
           : !is_from_f64                      ? To{0}
           : std::is_signed_v<To>              ? Limits::min()
                                               : Limits::max();
  if (rounded != rounded) return nan;
  if (rounded >= limit) return std::numeric_limits<To>::max();
  if (rounded < static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  return static_cast<To>(rounded);
}

template <bool flush>
float flushed(float value) {
  if constexpr (!flush) return value;
  uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
}

template <class To, class From, RoundingMode mode>
struct FloatToInteger {
  static To apply(From value) {
    return clamp_to_integer<To>(round_to_integer(value, mode), std::is_same_v<From, double>);
  }
};

double read_float(Warp& warp, OperandRef operand, Type type, int lane) {
  switch (type) {
    case Type::f16: return to_double(warp.lanes<Half>(operand)[lane]);
    case Type::bf16: return to_double(warp.lanes<Bfloat>(operand)[lane]);
    case Type::f32: return warp.lanes<float>(operand)[lane];
    default: return warp.lanes<double>(operand)[lane];
  }
}

template <class To>
const Instruction* run_float_to_integer(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  To* result = warp.lanes<To>(instruction.operands[0]);
  ConvertFlags flags(instruction.immediate);
  for_each_lane(lanes, [&](int lane) {
    double value = read_float(warp, instruction.operands[1], flags.from, lane);
    if (flags.flush_input && std::fabs(value) < 0x1p-126) value = std::copysign(0.0, value);
    result[lane] = clamp_to_integer<To>(round_to_integer(value, flags.mode), flags.from == Type::f64);
  });
  return &instruction + 1;
}

// ---- between floating-point types ----------------------------------------------------------------------------------

double widen(double value) { return value; }
double widen(float value) { return value; }
double widen(Half value) { return to_double(value); }
double widen(Bfloat value) { return to_double(value); }

/// The general path: exact to double, optionally to an integer, clamped, rounded once.
template <class To>
To narrow(double value, RoundingMode mode) {
  if constexpr (std::is_same_v<To, double>) {
    return value;
  } else if constexpr (std::is_same_v<To, float>) {
    if (value != value) return std::bit_cast<float>(0x7fffffffu);
    return std::bit_cast<float>(encode_float<FloatFormat<8, 23>>(value, mode));
  } else {
    return round_to<To>(value, mode);
  }
}

/// A NaN of double precision keeps its sign and what fits of its payload.
template <class To>
To short_nan_of(double nan) {
  using Format = typename To::Format;
  uint64_t bits = std::bit_cast<uint64_t>(nan);
  uint64_t payload = (bits & 0x000fffffffffffff) >> (52 - Format::mantissa_bits);
  uint64_t quiet = uint64_t{1} << (Format::mantissa_bits - 1);
  uint64_t sign = bits >> 63 ? Format::sign_bit : 0;
  return {static_cast<uint16_t>(sign | Format::infinity | quiet | payload)};
}

template <class To, class From>
const Instruction* run_float_to_float(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  To* result = warp.lanes<To>(instruction.operands[0]);
  const From* source = warp.lanes<From>(instruction.operands[1]);
  ConvertFlags flags(instruction.immediate);
  for_each_lane(lanes, [&](int lane) {
    double value = flags.prepare(widen(source[lane]));
    To narrowed = narrow<To>(value, flags.mode);
    if constexpr (std::is_same_v<From, double> && sizeof(To) == 2)
      if (value != value) narrowed = short_nan_of<To>(value);
    if constexpr (std::is_same_v<To, float>)
      if (flags.flush_result) narrowed = flushed<true>(narrowed);
    result[lane] = narrowed;
  });
  return &instruction + 1;
}

struct HalfToFloat {
  static float apply(uint16_t bits) {
    // Shifted into place as an f32 of the wrong exponent, which a multiplication corrects; NaN
    // and infinity have the largest exponent of both formats.
    uint32_t magnitude = (bits & 0x7fffu) << 13;
    uint32_t special = (bits & 0x7c00) == 0x7c00 ? 0x70000000u : 0;
    float value = std::bit_cast<float>(magnitude) * 0x1p112f;
    uint32_t result = std::bit_cast<uint32_t>(value);
    if (special != 0) result = (bits & 0x3ff) != 0 ? 0x7fffffffu : 0x7f800000u;
    bool is_nan = special != 0 && (bits & 0x3ff) != 0;
    return std::bit_cast<float>(result | (is_nan ? 0 : static_cast<uint32_t>(bits & 0x8000) << 16));
  }
};

struct BfloatToFloat {
  static uint32_t apply(uint16_t bits) { return static_cast<uint32_t>(bits) << 16; }
};

/// To nearest, halves away from zero: what is dropped are the low bits of an f32.
struct FloatToTf32 {
  static uint32_t apply(uint32_t bits) {
    constexpr uint32_t quiet = 0x00400000, kept = 0xffffe000, half = 0x1000;
    bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    return is_nan ? (bits & kept) | quiet : (bits + half) & kept;
  }
};

template <bool flush>
struct FloatToDouble {
  static double apply(float value) { return flushed<flush>(value); }
};
template <bool flush>
struct DoubleToFloat {
  static float apply(double value) {
    if (flush && std::fabs(value) < 0x1p-126) value = std::copysign(0.0, value);
    return static_cast<float>(value);  // a NaN keeps what fits of its payload
  }
};

const Instruction* run_float_to_tf32(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  uint32_t* result = warp.lanes<uint32_t>(instruction.operands[0]);
  const float* source = warp.lanes<float>(instruction.operands[1]);
  ConvertFlags flags(instruction.immediate);
  for_each_lane(lanes, [&](int lane) {
    double value = flags.prepare(source[lane]);
    uint32_t bits = encode_float<Tf32Format>(value, flags.mode, flags.saturate_finite);
    constexpr uint32_t quiet = 0x00400000, kept = 0xffffe000;
    result[lane] = value != value ? (std::bit_cast<uint32_t>(source[lane]) & kept) | quiet : bits << 13;
  });
  return &instruction + 1;
}

template <class Format, class Pair>
const Instruction* run_pair_from_floats(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  Pair* result = warp.lanes<Pair>(instruction.operands[0]);
  const float* upper = warp.lanes<float>(instruction.operands[1]);
  const float* lower = warp.lanes<float>(instruction.operands[2]);
  ConvertFlags flags(instruction.immediate);
  constexpr int bits = 4 * sizeof(Pair);
  for_each_lane(lanes, [&](int lane) {
    auto encode = [&](float value) {
      return encode_float<Format>(flags.prepare(value), flags.mode, flags.saturate_finite);
    };
    result[lane] = static_cast<Pair>(encode(upper[lane]) << bits | encode(lower[lane]));
  });
  return &instruction + 1;
}

template <class ToFormat, class To, class FromFormat, class From>
const Instruction* run_pair_to_pair(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  To* result = warp.lanes<To>(instruction.operands[0]);
  const From* source = warp.lanes<From>(instruction.operands[1]);
  ConvertFlags flags(instruction.immediate);
  constexpr int to_bits = 4 * sizeof(To), from_bits = 4 * sizeof(From);
  constexpr uint32_t from_mask = (1u << from_bits) - 1;
  for_each_lane(lanes, [&](int lane) {
    auto encode = [&](uint32_t half) {
      double value = flags.prepare(decode_float<FromFormat>(half & from_mask));
      return encode_float<ToFormat>(value, flags.mode, flags.saturate_finite);
    };
    uint32_t pair = source[lane];
    result[lane] = static_cast<To>(encode(pair >> from_bits) << to_bits | encode(pair));
  });
  return &instruction + 1;
}

// ---- choosing ------------------------------------------------------------------------------------------------------

bool is_integer(Type type) { return ptx::is_signed_integer(type) || ptx::is_unsigned_integer(type); }

/// Calls make<T>() with the C++ type of an integer type.
template <class Make>
Handler for_integer(Type type, Make make) {
  switch (type) {
    case Type::u8: return make.template operator()<uint8_t>();
    case Type::u16: return make.template operator()<uint16_t>();
    case Type::u32: return make.template operator()<uint32_t>();
    case Type::u64: return make.template operator()<uint64_t>();
    case Type::s8: return make.template operator()<int8_t>();
    case Type::s16: return make.template operator()<int16_t>();
    case Type::s32: return make.template operator()<int32_t>();
    case Type::s64: return make.template operator()<int64_t>();
    default: return nullptr;
  }
}

template <class Op>
Handler with_rounding(RoundingMode mode) {
  switch (mode) {
    case RoundingMode::nearest_even: return elementwise<Op, Rounding::nearest_even>();
    case RoundingMode::toward_zero: return elementwise<Op, Rounding::toward_zero>();
    case RoundingMode::down: return elementwise<Op, Rounding::down>();
    case RoundingMode::up: return elementwise<Op, Rounding::up>();
    case RoundingMode::nearest_away: return nullptr;
  }
  return nullptr;
}

/// Copies the low part, or extends; the sign matters only for what is extended.
template <class From>
Handler resize_from(uint32_t to_bytes) {
  using Unsigned = std::make_unsigned_t<From>;
  switch (to_bytes) {
    case 1: return elementwise<Resize<uint8_t, Unsigned>>();
    case 2: return elementwise<Resize<uint16_t, std::conditional_t<sizeof(From) < 2, From, Unsigned>>>();
    case 4: return elementwise<Resize<uint32_t, std::conditional_t<sizeof(From) < 4, From, Unsigned>>>();
    case 8: return elementwise<Resize<uint64_t, std::conditional_t<sizeof(From) < 8, From, Unsigned>>>();
    default: return nullptr;
  }
}

Handler integer_to_integer(const ConvertForm& form) {
  if (form.saturate) return for_integer(form.to, []<class To>() -> Handler { return &run_saturate_integer<To>; });
  return for_integer(form.from, [&]<class From>() { return resize_from<From>(ptx::size_of(form.to)); });
}

/// Integers that a floating-point type holds exactly are not rounded.
template <class To, class From>
Handler integer_to_float_of(RoundingMode mode) {
  if constexpr (std::numeric_limits<From>::digits <= std::numeric_limits<To>::digits)
    return elementwise<IntegerToFloat<To, From>>();
  else return with_rounding<IntegerToFloat<To, From>>(mode);
}

Handler integer_to_float(const ConvertForm& form) {
  switch (form.to) {
    case Type::f16: return form.saturate ? nullptr : &run_integer_to_short<Half>;
    case Type::bf16: return form.saturate ? nullptr : &run_integer_to_short<Bfloat>;
    case Type::f32:
      if (form.saturate) return &run_integer_to_fraction<float>;
      return for_integer(form.from, [&]<class From>() { return integer_to_float_of<float, From>(form.rounding); });
    case Type::f64:
      if (form.saturate) return &run_integer_to_fraction<double>;
      return for_integer(form.from, [&]<class From>() { return integer_to_float_of<double, From>(form.rounding); });
    default: return nullptr;
  }
}

template <class To, class From>
Handler float_to_integer_of(RoundingMode mode) {
  if (mode == RoundingMode::toward_zero) return elementwise<FloatToInteger<To, From, RoundingMode::toward_zero>>();
  if (mode == RoundingMode::nearest_even) return elementwise<FloatToInteger<To, From, RoundingMode::nearest_even>>();
  if constexpr (sizeof(To) == 4) {
    if (mode == RoundingMode::down) return elementwise<FloatToInteger<To, From, RoundingMode::down>>();
    if (mode == RoundingMode::up) return elementwise<FloatToInteger<To, From, RoundingMode::up>>();
  }
  return &run_float_to_integer<To>;
}

Handler float_to_integer(const ConvertForm& form) {
  if (form.rounding == RoundingMode::nearest_away) return nullptr;
  // What is flushed rounds to zero anyway, except away from it.
  bool is_away = form.rounding == RoundingMode::down || form.rounding == RoundingMode::up;
  return for_integer(form.to, [&]<class To>() -> Handler {
    if (form.from == Type::f32 && !(form.flush && is_away)) return float_to_integer_of<To, float>(form.rounding);
    if constexpr (sizeof(To) >= 4)
      if (form.from == Type::f64) return float_to_integer_of<To, double>(form.rounding);
    bool is_known =
        form.from == Type::f16 || form.from == Type::bf16 || form.from == Type::f32 || form.from == Type::f64;
    return is_known ? &run_float_to_integer<To> : nullptr;
  });
}

template <class From>
Handler float_to_float_from(Type to) {
  switch (to) {
    case Type::f16: return &run_float_to_float<Half, From>;
    case Type::bf16: return &run_float_to_float<Bfloat, From>;
    case Type::f32: return &run_float_to_float<float, From>;
    case Type::f64: return &run_float_to_float<double, From>;
    default: return nullptr;
  }
}

Handler float_to_float(const ConvertForm& form) {
  bool is_plain = !form.saturate && !form.relu && !form.round_to_integer && !form.saturate_finite;
  // The frequent ones as vector loops.
  if (is_plain && form.from == Type::f16 && form.to == Type::f32 && !form.flush) return elementwise<HalfToFloat>();
  if (is_plain && form.from == Type::bf16 && form.to == Type::f32 && !form.flush) return elementwise<BfloatToFloat>();
  if (is_plain && form.from == Type::f32 && form.to == Type::f64)
    return form.flush ? elementwise<FloatToDouble<true>>() : elementwise<FloatToDouble<false>>();
  if (is_plain && form.from == Type::f64 && form.to == Type::f32)
    return form.flush ? with_rounding<DoubleToFloat<true>>(form.rounding)
                      : with_rounding<DoubleToFloat<false>>(form.rounding);
  if (is_plain && form.from == Type::f32 && form.to == Type::tf32 && !form.flush &&
      form.rounding == RoundingMode::nearest_away)
    return elementwise<FloatToTf32>();
  if (form.to == Type::tf32) return form.from == Type::f32 ? &run_float_to_tf32 : nullptr;
  switch (form.from) {
    case Type::f16: return float_to_float_from<Half>(form.to);
    case Type::bf16: return float_to_float_from<Bfloat>(form.to);
    case Type::f32: return float_to_float_from<float>(form.to);
    case Type::f64: return float_to_float_from<double>(form.to);
    default: return nullptr;
  }
}

}  // namespace

Handler copy(uint32_t bytes) {
  switch (bytes) {
    case 1: return elementwise<Copy<uint8_t>>();
    case 2: return elementwise<Copy<uint16_t>>();
    case 4: return elementwise<Copy<uint32_t>>();
    case 8: return elementwise<Copy<uint64_t>>();
    case 16: return elementwise<Copy<Wide>>();
    default: return nullptr;
  }
}

Handler resize(uint32_t to_bytes, uint32_t from_bytes, bool is_signed) {
  auto from_type = [&](uint32_t bytes) {
    switch (bytes) {
      case 1: return is_signed ? Type::s8 : Type::u8;
      case 2: return is_signed ? Type::s16 : Type::u16;
      case 4: return is_signed ? Type::s32 : Type::u32;
      case 8: return is_signed ? Type::s64 : Type::u64;
      default: return Type::none;
    }
  };
  return integer_to_integer({.to = from_type(to_bytes), .from = from_type(from_bytes)});
}

Handler pack(uint32_t to_bytes, uint32_t count) {
  if (to_bytes == 2 && count == 2) return &run_pack<uint16_t, uint8_t, 2>;
  if (to_bytes == 4 && count == 2) return &run_pack<uint32_t, uint16_t, 2>;
  if (to_bytes == 4 && count == 4) return &run_pack<uint32_t, uint8_t, 4>;
  if (to_bytes == 8 && count == 2) return &run_pack<uint64_t, uint32_t, 2>;
  if (to_bytes == 8 && count == 4) return &run_pack<uint64_t, uint16_t, 4>;
  if (to_bytes == 16 && count == 2) return &run_pack<Wide, uint64_t, 2>;
  if (to_bytes == 16 && count == 4) return &run_pack<Wide, uint32_t, 4>;
  return nullptr;
}

Handler unpack(uint32_t from_bytes, uint32_t count) {
  if (from_bytes == 2 && count == 2) return &run_unpack<uint16_t, uint8_t, 2>;
  if (from_bytes == 4 && count == 2) return &run_unpack<uint32_t, uint16_t, 2>;
  if (from_bytes == 4 && count == 4) return &run_unpack<uint32_t, uint8_t, 4>;
  if (from_bytes == 8 && count == 2) return &run_unpack<uint64_t, uint32_t, 2>;
  if (from_bytes == 8 && count == 4) return &run_unpack<uint64_t, uint16_t, 4>;
  if (from_bytes == 16 && count == 2) return &run_unpack<Wide, uint64_t, 2>;
  if (from_bytes == 16 && count == 4) return &run_unpack<Wide, uint32_t, 4>;
  return nullptr;
}

int64_t convert_flags(const ConvertForm& form) { return ConvertFlags::encode(form); }

Handler convert(const ConvertForm& form) {
  if (is_integer(form.to)) return is_integer(form.from) ? integer_to_integer(form) : float_to_integer(form);
  return is_integer(form.from) ? integer_to_float(form) : float_to_float(form);
}

Handler convert_pair(const ConvertForm& form) {
  if (form.from != Type::f32) return nullptr;
  switch (form.to) {
    case Type::f16x2: return &run_pair_from_floats<HalfFormat, uint32_t>;
    case Type::bf16x2: return &run_pair_from_floats<BfloatFormat, uint32_t>;
    case Type::e4m3x2: return &run_pair_from_floats<E4m3Format, uint16_t>;
    case Type::e5m2x2: return &run_pair_from_floats<E5m2Format, uint16_t>;
    default: return nullptr;
  }
}

Handler convert_short_pair(const ConvertForm& form) {
  if (form.to == Type::f16x2 && form.from == Type::e4m3x2)
    return &run_pair_to_pair<HalfFormat, uint32_t, E4m3Format, uint16_t>;
  if (form.to == Type::f16x2 && form.from == Type::e5m2x2)
    return &run_pair_to_pair<HalfFormat, uint32_t, E5m2Format, uint16_t>;
  if (form.to == Type::e4m3x2 && form.from == Type::f16x2)
    return &run_pair_to_pair<E4m3Format, uint16_t, HalfFormat, uint32_t>;
  if (form.to == Type::e5m2x2 && form.from == Type::f16x2)
    return &run_pair_to_pair<E5m2Format, uint16_t, HalfFormat, uint32_t>;
  return nullptr;
}

}  // namespace fargpu::softgpu::ops
