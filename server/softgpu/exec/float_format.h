#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace fargpu::softgpu {

enum class RoundingMode : uint8_t { nearest_even, nearest_away, toward_zero, down, up };

/// A binary floating-point format no wider than double. `is_finite_only` formats have no
/// infinities: their largest exponent holds numbers, and only all ones is NaN.
template <int exponent_bits_, int mantissa_bits_, bool is_finite_only_ = false>
struct FloatFormat {
  static constexpr int exponent_bits = exponent_bits_;
  static constexpr int mantissa_bits = mantissa_bits_;
  static constexpr bool is_finite_only = is_finite_only_;
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  static constexpr uint32_t sign_bit = 1u << (exponent_bits + mantissa_bits);
  static constexpr uint32_t mantissa_mask = (1u << mantissa_bits) - 1;
  static constexpr uint32_t exponent_max = (1u << exponent_bits) - 1;
  static constexpr uint32_t infinity = exponent_max << mantissa_bits;  // unless finite only
  static constexpr uint32_t nan = sign_bit - 1;
  static constexpr uint32_t largest = is_finite_only ? nan - 1 : infinity - 1;
};

using HalfFormat = FloatFormat<5, 10>;
using BfloatFormat = FloatFormat<8, 7>;
using Tf32Format = FloatFormat<8, 10>;
using E4m3Format = FloatFormat<4, 3, true>;
using E5m2Format = FloatFormat<5, 2>;

/// The exact value. A NaN becomes quiet and keeps its payload.
template <class Format>
double decode_float(uint32_t bits) {
  constexpr uint64_t quiet_nan = 0x7ff8000000000000;
  constexpr int dropped_bits = 52 - Format::mantissa_bits;
  uint32_t exponent = (bits >> Format::mantissa_bits) & Format::exponent_max;
  uint32_t mantissa = bits & Format::mantissa_mask;
  double value;
  if (!Format::is_finite_only && exponent == Format::exponent_max)
    value =
        mantissa != 0 ? std::bit_cast<double>(quiet_nan | static_cast<uint64_t>(mantissa) << dropped_bits) : HUGE_VAL;
  else if (Format::is_finite_only && (bits & Format::nan) == Format::nan) value = std::nan("");
  else if (exponent == 0)
    value =
        mantissa * std::bit_cast<double>(static_cast<uint64_t>(1023 + 1 - Format::bias - Format::mantissa_bits) << 52);
  else
    value = std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023 - Format::bias) << 52 |
                                  static_cast<uint64_t>(mantissa) << dropped_bits);
  return bits & Format::sign_bit ? -value : value;
}

/// Rounds to the format once. Values beyond its range become infinity or the largest number as
/// the rounding mode says; with `saturate_finite` always the largest number.
template <class Format>
uint32_t encode_float(double value, RoundingMode mode, bool saturate_finite = false) {
  uint64_t bits = std::bit_cast<uint64_t>(value);
  bool is_negative = bits >> 63;
  uint32_t sign = is_negative ? Format::sign_bit : 0;
  if (std::isnan(value)) return Format::nan;
  int exponent_field = static_cast<int>((bits >> 52) & 0x7ff);
  if (exponent_field == 0x7ff) {
    bool keeps_infinity = !Format::is_finite_only && !saturate_finite;
    if (keeps_infinity) return sign | Format::infinity;
    return sign | (saturate_finite ? Format::largest : Format::nan);
  }
  uint64_t significand = bits & ((uint64_t{1} << 52) - 1);
  if (exponent_field != 0) significand |= uint64_t{1} << 52;
  int exponent = (exponent_field != 0 ? exponent_field : 1) - 1023;  // of the bit 2^52

  constexpr int smallest_exponent = 1 - Format::bias;
  // The value of the last place kept.
  int quantum = (exponent > smallest_exponent ? exponent : smallest_exponent) - Format::mantissa_bits;
  int shift = quantum - (exponent - 52);
  uint64_t kept = shift < 64 ? significand >> shift : 0;
  uint64_t rest = shift < 64 ? significand & ((uint64_t{1} << shift) - 1) : significand;
  uint64_t half = shift <= 64 ? uint64_t{1} << (shift - 1) : ~uint64_t{0};
  bool round_up = false;
  switch (mode) {
    case RoundingMode::nearest_even: round_up = rest > half || (rest == half && (kept & 1)); break;
    case RoundingMode::nearest_away: round_up = rest >= half; break;
    case RoundingMode::toward_zero: break;
    case RoundingMode::down: round_up = is_negative && rest != 0; break;
    case RoundingMode::up: round_up = !is_negative && rest != 0; break;
  }
  kept += round_up;
  // The leading one of a normal number adds one to the exponent field, as does a carry.
  uint64_t encoded =
      (static_cast<uint64_t>(quantum - (smallest_exponent - Format::mantissa_bits)) << Format::mantissa_bits) + kept;
  if (encoded <= Format::largest) return sign | static_cast<uint32_t>(encoded);
  bool stays_finite = saturate_finite || mode == RoundingMode::toward_zero ||
                      (mode == RoundingMode::down && !is_negative) || (mode == RoundingMode::up && is_negative);
  if (stays_finite) return sign | Format::largest;
  return Format::is_finite_only ? Format::nan : sign | Format::infinity;
}

/// Numbers of 16 bits as registers hold them.
struct Half {
  using Format = HalfFormat;
  uint16_t bits;
};
struct Bfloat {
  using Format = BfloatFormat;
  uint16_t bits;
};

inline double to_double(Half value) { return decode_float<HalfFormat>(value.bits); }
/// The value in single precision, without branches, for loops over lanes.
inline float to_float(Half value) {
  uint32_t magnitude = value.bits & 0x7fffu, mantissa = magnitude & 0x3ff;
  // Shifted into place it is an f32 of the wrong exponent, which a multiplication corrects.
  float number = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  uint32_t special = 0x7f800000 | mantissa << 13 | (mantissa != 0 ? 0x00400000 : 0);
  uint32_t bits = magnitude >= 0x7c00 ? special : std::bit_cast<uint32_t>(number);
  return std::bit_cast<float>(bits | static_cast<uint32_t>(value.bits & 0x8000) << 16);
}
/// A bf16 is the upper half of an f32.
inline double to_double(Bfloat value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

template <class T>
T round_to(double value, RoundingMode mode = RoundingMode::nearest_even) {
  return {static_cast<uint16_t>(encode_float<typename T::Format>(value, mode))};
}

/// a + b rounded to odd: rounding that once more to a format at least two bits narrower gives
/// what rounding the exact sum would.
inline double add_to_odd(double a, double b) {
  double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  double b_part = sum - a;
  double error = (a - (sum - b_part)) + (b - b_part);
  if (error == 0) return sum;
  uint64_t bits = std::bit_cast<uint64_t>(sum);
  if ((error < 0) != (sum < 0)) --bits;
  return std::bit_cast<double>(bits | 1);
}

}  // namespace fargpu::softgpu
