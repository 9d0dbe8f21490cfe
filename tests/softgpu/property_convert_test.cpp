// Conversions between all types (PTX ISA 9.7.9, cvt).

#include "property.h"

using namespace softgpu_tests;

namespace {

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, float>) return ".f32";
  if constexpr (std::is_same_v<T, double>) return ".f64";
  if constexpr (std::is_same_v<T, Half>) return ".f16";
  if constexpr (std::is_same_v<T, Bfloat>) return ".bf16";
  if constexpr (std::is_integral_v<T>) return (std::is_signed_v<T> ? ".s" : ".u") + std::to_string(8 * sizeof(T));
}

template <class T>
double as_double(T value) {
  if constexpr (is_small_float<T>) return value_of(value);
  else return value;
}

struct IntegerRound {
  const char* name;
  double (*round)(double);
};
constexpr IntegerRound integer_rounds[] = {{".rni", [](double v) { return std::nearbyint(v); }},
                                           {".rzi", [](double v) { return std::trunc(v); }},
                                           {".rmi", [](double v) { return std::floor(v); }},
                                           {".rpi", [](double v) { return std::ceil(v); }}};

/// Clamped. A NaN becomes zero, but counts as 2^63 or 2^31 where the hardware converts by way of
/// such integers: from double precision, and to 64 bits.
template <class To, class From>
To to_integer(From from, const IntegerRound& round) {
  using L = std::numeric_limits<To>;
  double value = as_double(from);
  if (std::isnan(value)) {
    if (sizeof(To) == 8) return static_cast<To>(uint64_t{1} << 63);
    if (!std::is_same_v<From, double>) return 0;
    if (sizeof(To) == 4) return static_cast<To>(uint32_t{1} << 31);
    return std::is_signed_v<To> ? L::min() : L::max();
  }
  value = round.round(value);
  if (value <= static_cast<double>(L::min())) return L::min();
  if (value >= static_cast<double>(L::max())) return L::max();
  return static_cast<To>(value);
}

template <class To, class From>
void check_to_integer() {
  for (const IntegerRound& round : integer_rounds)
    check<To(From)>("cvt" + std::string(round.name) + type_name<To>() + type_name<From>(),
                    [&](From value) { return to_integer<To>(value, round); });
}

template <class From>
void check_to_integers() {
  check_to_integer<int16_t, From>();
  check_to_integer<uint16_t, From>();
  check_to_integer<int32_t, From>();
  check_to_integer<uint32_t, From>();
  check_to_integer<int64_t, From>();
  check_to_integer<uint64_t, From>();
}

struct NamedRound {
  const char* name;
  Round mode;
};
constexpr NamedRound rounds[] = {
    {".rn", Round::nearest}, {".rz", Round::zero}, {".rm", Round::down}, {".rp", Round::up}};

template <class T>
void check_from_integer() {
  for (const NamedRound& round : rounds) {
    std::string end = type_name<T>();
    check<float(T)>("cvt" + std::string(round.name) + ".f32" + end, [&](T value) {
      return under(
          round.mode, [](T from) { return static_cast<float>(from); }, value);
    });
    check<double(T)>("cvt" + std::string(round.name) + ".f64" + end, [&](T value) {
      return under(
          round.mode, [](T from) { return static_cast<double>(from); }, value);
    });
    check<Half(T)>("cvt" + std::string(round.name) + ".f16" + end, [&](T value) {
      // Numbers that double does not hold are far beyond the largest half.
      Half result = rounded<Half>(static_cast<double>(value), round.mode);
      return result;
    });
  }
}

template <class To, class From>
void check_between_integers() {
  check<To(From)>("cvt" + type_name<To>() + type_name<From>(), [](From value) { return static_cast<To>(value); });
  check<To(From)>("cvt.sat" + type_name<To>() + type_name<From>(), [](From value) {
    using L = std::numeric_limits<To>;
    __int128 wide = value;
    return static_cast<To>(wide < L::min() ? __int128{L::min()} : wide > L::max() ? __int128{L::max()} : wide);
  });
}

template <class From>
void check_all_from() {
  check_between_integers<int8_t, From>();
  check_between_integers<uint8_t, From>();
  check_between_integers<int16_t, From>();
  check_between_integers<uint16_t, From>();
  check_between_integers<int32_t, From>();
  check_between_integers<uint32_t, From>();
  check_between_integers<int64_t, From>();
  check_between_integers<uint64_t, From>();
}

float flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }

/// The conversion of two numbers into the halves of one register.
template <class F, class Operand>
void check_pair(const std::string& text, Round mode, bool saturates, bool relu) {
  check<Pair<F>(Operand, Operand)>(text, [=](Operand high, Operand low) {
    auto one = [&](Operand value) {
      double number = as_double(value);
      if (relu && number <= 0) number = 0;
      return rounded<F>(number, mode, saturates);
    };
    return Pair<F>{one(low), one(high)};
  });
}

}  // namespace

TEST_CASE("between integers") {
  Context context;
  check_all_from<int8_t>();
  check_all_from<uint8_t>();
  check_all_from<int16_t>();
  check_all_from<uint16_t>();
  check_all_from<int32_t>();
  check_all_from<uint32_t>();
  check_all_from<int64_t>();
  check_all_from<uint64_t>();
}

TEST_CASE("to integers") {
  Context context;
  check_to_integers<float>();
  check_to_integers<double>();
  check_to_integers<Half>();
  check_to_integers<Bfloat>();
  check<int32_t(float)>("cvt.rzi.ftz.s32.f32",
                        [](float a) { return to_integer<int32_t>(flushed(a), integer_rounds[1]); });
  check<int32_t(float)>("cvt.rpi.ftz.s32.f32",
                        [](float a) { return to_integer<int32_t>(flushed(a), integer_rounds[3]); });
}

TEST_CASE("from integers") {
  Context context;
  check_from_integer<int8_t>();
  check_from_integer<uint8_t>();
  check_from_integer<int16_t>();
  check_from_integer<uint16_t>();
  check_from_integer<int32_t>();
  check_from_integer<uint32_t>();
  check_from_integer<int64_t>();
  check_from_integer<uint64_t>();
}

TEST_CASE("to whole numbers") {
  Context context;
  for (const IntegerRound& round : integer_rounds) {
    std::string name = "cvt" + std::string(round.name);
    check<float(float)>(name + ".f32.f32", [&](float a) { return static_cast<float>(round.round(a)); });
    check<double(double)>(name + ".f64.f64", [&](double a) { return round.round(a); });
    check<Half(Half)>(name + ".f16.f16", [&](Half a) { return rounded<Half>(round.round(value_of(a))); });
  }
}

TEST_CASE("between floating-point types") {
  Context context;
  check<double(float)>("cvt.f64.f32", [](float a) { return double{a}; });
  check<float(Half)>("cvt.f32.f16", [](Half a) { return static_cast<float>(value_of(a)); });
  check<double(Half)>("cvt.f64.f16", [](Half a) { return value_of(a); });
  check<float(Bfloat)>("cvt.f32.bf16", [](Bfloat a) { return static_cast<float>(value_of(a)); });
  for (const NamedRound& round : rounds) {
    std::string name = "cvt" + std::string(round.name);
    check<float(double)>(name + ".f32.f64", [&](double a) { return rounded_to_float(a, round.mode); });
    check<Half(float)>(name + ".f16.f32", [&](float a) { return rounded<Half>(a, round.mode); });
    check<Half(double)>(name + ".f16.f64", [&](double a) { return rounded<Half>(a, round.mode); });
  }
  check<float(double)>("cvt.rn.ftz.f32.f64", [](double a) {
    return std::fabs(a) < 0x1p-126 ? std::copysign(0.0f, static_cast<float>(a)) : static_cast<float>(a);
  });
  for (Round mode : {Round::nearest, Round::zero}) {
    std::string name = mode == Round::nearest ? "cvt.rn" : "cvt.rz";
    check<Bfloat(float)>(name + ".bf16.f32", [&](float a) { return rounded<Bfloat>(a, mode); });
    check<Bfloat(float)>(name + ".relu.bf16.f32", [&](float a) { return rounded<Bfloat>(a <= 0 ? 0.0 : a, mode); });
    check<Half(float)>(name + ".relu.f16.f32", [&](float a) { return rounded<Half>(a <= 0 ? 0.0 : a, mode); });
    check_pair<Half, float>(name + ".f16x2.f32", mode, false, false);
    check_pair<Half, float>(name + ".relu.f16x2.f32", mode, false, true);
    check_pair<Bfloat, float>(name + ".bf16x2.f32", mode, false, false);
    check_pair<Bfloat, float>(name + ".relu.bf16x2.f32", mode, false, true);
  }
  check<float(float)>("cvt.sat.f32.f32", [](float a) { return a > 0 ? std::min(a, 1.0f) : 0.0f; });
  check<Half(float)>("cvt.rn.sat.f16.f32", [](float a) { return rounded<Half>(a > 0 ? std::min(a, 1.0f) : 0.0f); });
}

TEST_CASE("to tf32") {
  Context context;
  auto padded = [](Tf32 value) { return value.bits << 13; };
  auto convert = [&](const char* text, Round mode) {
    Check<uint32_t(float)>::run(complete(text, 1), [&](const auto& operands, uint64_t got, uint64_t& wanted) {
      float a = std::get<0>(operands);
      wanted = padded(rounded<Tf32>(a, mode));
      return std::isnan(a) ? is_nan_bits<float>(got) : got == wanted;
    });
  };
  convert("cvt.rna.tf32.f32", Round::away);
  convert("cvt.rn.tf32.f32", Round::nearest);
  convert("cvt.rz.tf32.f32", Round::zero);
}

TEST_CASE("numbers of 8 bits") {
  Context context;
  check_pair<E4m3, float>("cvt.rn.satfinite.e4m3x2.f32", Round::nearest, true, false);
  check_pair<E5m2, float>("cvt.rn.satfinite.e5m2x2.f32", Round::nearest, true, false);
  check_pair<E4m3, float>("cvt.rn.satfinite.relu.e4m3x2.f32", Round::nearest, true, true);
  auto from_half = [](auto tag, const char* text) {
    using F = decltype(tag);
    check<Pair<F>(Pair<Half>)>(text, [](Pair<Half> a) {
      return Pair<F>{rounded<F>(value_of(a.low), Round::nearest, true),
                     rounded<F>(value_of(a.high), Round::nearest, true)};
    });
  };
  from_half(E4m3{}, "cvt.rn.satfinite.e4m3x2.f16x2");
  from_half(E5m2{}, "cvt.rn.satfinite.e5m2x2.f16x2");
  auto to_half = [](auto tag, const char* text) {
    using F = decltype(tag);
    check<Pair<Half>(Pair<F>)>(text, [](Pair<F> a) {
      return Pair<Half>{rounded<Half>(value_of(a.low)), rounded<Half>(value_of(a.high))};
    });
  };
  to_half(E4m3{}, "cvt.rn.f16x2.e4m3x2");
  to_half(E5m2{}, "cvt.rn.f16x2.e5m2x2");
}
