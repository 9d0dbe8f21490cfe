#pragma once

// Instructions against functions of C++: `check` runs one instruction over the edges of its
// operands' types and over random operands, and compares every result.

#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "driver.h"

namespace softgpu_tests {

/// Numbers of formats that C++ lacks, by their bits.
template <int exponent_bits_, int mantissa_bits_, bool has_infinity_, class Bits_>
struct SmallFloat {
  using Bits = Bits_;
  static constexpr int exponent_bits = exponent_bits_, mantissa_bits = mantissa_bits_;
  static constexpr bool has_infinity = has_infinity_;
  Bits bits;
};
using Half = SmallFloat<5, 10, true, uint16_t>;
using Bfloat = SmallFloat<8, 7, true, uint16_t>;
using Tf32 = SmallFloat<8, 10, true, uint32_t>;
using E4m3 = SmallFloat<4, 3, false, uint8_t>;
using E5m2 = SmallFloat<5, 2, true, uint8_t>;

/// Two numbers in one register, as C++ sees them.
template <class T>
struct Pair {
  T low, high;
};

enum class Round { nearest, zero, down, up, away };

template <class T>
struct IsSmallFloat : std::false_type {};
template <int e, int m, bool i, class B>
struct IsSmallFloat<SmallFloat<e, m, i, B>> : std::true_type {};
template <class T>
inline constexpr bool is_small_float = IsSmallFloat<T>::value;
template <class T>
struct IsPair : std::false_type {};
template <class T>
struct IsPair<Pair<T>> : std::true_type {};

template <class T>
inline constexpr int mantissa_places = std::numeric_limits<T>::digits - 1;
template <int e, int m, bool i, class B>
inline constexpr int mantissa_places<SmallFloat<e, m, i, B>> = m;

// ---- the formats, described by what their bits mean ----------------------------------------------------------------

template <class F>
struct FormatOf {
  static constexpr int bias = (1 << (F::exponent_bits - 1)) - 1;
  static constexpr uint32_t sign = 1u << (F::exponent_bits + F::mantissa_bits);
  static constexpr uint32_t infinity = ((1u << F::exponent_bits) - 1) << F::mantissa_bits;
  /// The least magnitude that is no finite number.
  static constexpr uint32_t end = F::has_infinity ? infinity : sign - 1;

  static double magnitude(uint32_t bits) {
    int exponent = static_cast<int>(bits >> F::mantissa_bits);
    double mantissa = bits & ((1u << F::mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias - F::mantissa_bits);
    return std::ldexp(mantissa + (1 << F::mantissa_bits), exponent - bias - F::mantissa_bits);
  }
};

template <class F>
double value_of(F number) {
  using Format = FormatOf<F>;
  uint32_t rest = number.bits & (Format::sign - 1);
  double result = rest < Format::end                       ? Format::magnitude(rest)
                  : Format::end == rest && F::has_infinity ? INFINITY
                                                           : NAN;
  return number.bits & Format::sign ? -result : result;
}

/// Rounds by looking for the neighbours among all numbers of the format. `residue` is the sign of
/// what the exact value has beyond `value`.
template <class F>
F rounded(double value, Round mode = Round::nearest, bool saturates = false, int residue = 0) {
  using Format = FormatOf<F>;
  auto of = [](uint32_t bits) { return F{static_cast<typename F::Bits>(bits)}; };
  if (std::isnan(value)) return of(Format::sign - 1);
  bool is_negative = std::signbit(value);
  double magnitude = std::fabs(value);
  if (is_negative) residue = -residue;
  uint32_t below = 0, above = Format::end;
  while (above - below > 1) {
    uint32_t middle = (below + above) / 2;
    (Format::magnitude(middle) <= magnitude ? below : above) = middle;
  }
  double low = Format::magnitude(below), high = Format::magnitude(above);
  if (magnitude == low && residue < 0 && below > 0) {
    above = below--;
    high = low;
    low = Format::magnitude(below);
  }
  bool is_exact = magnitude == low && residue == 0;
  double to_low = magnitude - low, to_high = high - magnitude;
  bool is_nearer = to_high < to_low || (to_high == to_low && residue > 0);
  bool is_tie = to_high == to_low && residue == 0;
  bool takes_high = false;
  switch (mode) {
    case Round::nearest: takes_high = is_nearer || (is_tie && below % 2 == 1); break;
    case Round::away: takes_high = is_nearer || is_tie; break;
    case Round::zero: break;
    case Round::down: takes_high = is_negative && !is_exact; break;
    case Round::up: takes_high = !is_negative && !is_exact; break;
  }
  if (std::isinf(magnitude)) takes_high = true;
  uint32_t result = takes_high ? above : below;
  if (result == Format::end && saturates) --result;
  return of(result | (is_negative ? Format::sign : 0));
}

/// The value, read only where this stands: what is computed from it cannot move to before that.
template <class T>
T read_here(T value) {
  volatile T place = value;
  return place;
}

/// A function of the operands, evaluated under a rounding mode.
template <class F, class... T>
auto under(Round mode, F function, T... operands) {
  int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD, FE_TONEAREST};
  std::fesetround(modes[static_cast<int>(mode)]);
  volatile auto result = function(read_here(operands)...);
  std::fesetround(FE_TONEAREST);
  return static_cast<std::remove_cv_t<decltype(result)>>(result);
}

inline float rounded_to_float(double value, Round mode) {
  return under(
      mode, [](double from) { return static_cast<float>(from); }, value);
}

// ---- operands ------------------------------------------------------------------------------------------------------

/// Always the same, unless TEST_SEED says otherwise; failures name it.
inline uint64_t seed() {
  static uint64_t value = [] {
    const char* text = std::getenv("TEST_SEED");
    uint64_t chosen = text != nullptr ? std::strtoull(text, nullptr, 0) : 20260101;
    std::printf("TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return value;
}

inline std::mt19937_64& generator() {
  static std::mt19937_64 engine(seed());
  return engine;
}

template <class T>
std::vector<T> edges() {
  std::vector<T> values;
  if constexpr (IsPair<T>::value) {
    using Part = decltype(T::low);
    std::vector<Part> parts = edges<Part>();
    for (size_t i = 0; i < parts.size(); ++i) values.push_back({parts[i], parts[(i * 7 + 3) % parts.size()]});
  } else if constexpr (std::is_same_v<T, bool>) {
    values = {false, true};
  } else if constexpr (std::is_integral_v<T>) {
    using L = std::numeric_limits<T>;
    for (T value : {T(0), T(1), T(2), T(3), T(7), T(-1), T(-2), L::min(), T(L::min() + 1), L::max(), T(L::max() - 1),
                    T(L::max() / 2 + 1), T(0x55), T(31), T(32), T(33), T(255)})
      values.push_back(value);
  } else if constexpr (is_small_float<T>) {
    using Format = FormatOf<T>;
    uint32_t one = static_cast<uint32_t>(Format::bias) << T::mantissa_bits;
    uint32_t least_normal = 1u << T::mantissa_bits;
    for (uint32_t bits : {0u, 1u, least_normal - 1, least_normal, least_normal + 1, one - 1, one, one + 1,
                          one + least_normal, one + least_normal / 2, Format::end - 1, Format::end, Format::sign - 1})
      for (uint32_t sign : {0u, Format::sign}) values.push_back({static_cast<typename T::Bits>(bits | sign)});
  } else {
    using L = std::numeric_limits<T>;
    for (T value : {T(0),
                    T(1),
                    T(0.5),
                    T(1.5),
                    T(2),
                    T(2.5),
                    T(3),
                    L::min(),
                    L::denorm_min(),
                    L::min() - L::denorm_min(),
                    L::min() + L::denorm_min(),
                    L::max(),
                    L::epsilon(),
                    T(1) + L::epsilon(),
                    T(1) - L::epsilon() / 2,
                    L::infinity(),
                    L::quiet_NaN(),
                    T(1e9),
                    T(16777217),
                    T(4294967296.0),
                    T(100.25)})
      for (T sign : {T(1), T(-1)}) values.push_back(value * sign);
  }
  return values;
}

template <class T>
T random_operand() {
  uint64_t bits = generator()();
  // Small numbers of bits are as likely as large ones.
  if (std::is_integral_v<T> && bits % 3 == 0) bits >>= generator()() % 64;
  if constexpr (IsPair<T>::value) {
    using Part = decltype(T::low);
    return {random_operand<Part>(), random_operand<Part>()};
  } else if constexpr (std::is_same_v<T, bool>) {
    return bits & 1;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else if constexpr (is_small_float<T>) {
    return {static_cast<typename T::Bits>(bits)};
  } else {
    if (bits % 4 == 0) return std::uniform_real_distribution<T>(T(-100), T(100))(generator());
    if constexpr (sizeof(T) == 4) return std::bit_cast<float>(static_cast<uint32_t>(bits));
    else return std::bit_cast<double>(bits);
  }
}

// ---- registers -----------------------------------------------------------------------------------------------------

/// The bits of a value as a register of 16, 32 or 64 bits holds them.
template <class T>
uint64_t bits_of(T value) {
  if constexpr (IsPair<T>::value) {
    constexpr int width = 8 * sizeof(value.low);
    return bits_of(value.low) | bits_of(value.high) << width;
  } else if constexpr (is_small_float<T>) {
    return value.bits;
  } else if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<uint32_t>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<uint64_t>(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value;
  } else if constexpr (sizeof(T) == 1) {
    return static_cast<uint16_t>(value);  // extended as its type says
  } else {
    return static_cast<std::make_unsigned_t<T>>(value);
  }
}

template <class T>
constexpr int register_bits() {
  if constexpr (std::is_same_v<T, bool>) return 32;  // passed as 0 or 1
  return sizeof(T) == 1 ? 16 : 8 * static_cast<int>(sizeof(T));
}

template <class T>
bool is_nan_bits(uint64_t bits) {
  if constexpr (is_small_float<T>) return std::isnan(value_of(T{static_cast<typename T::Bits>(bits)}));
  else if constexpr (std::is_same_v<T, float>) return std::isnan(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  else if constexpr (std::is_same_v<T, double>) return std::isnan(std::bit_cast<double>(bits));
  else return false;
}

/// Equal bits; NaNs are all the same.
template <class T>
bool is_same(uint64_t got, uint64_t wanted) {
  if constexpr (IsPair<T>::value) {
    using Part = decltype(T::low);
    constexpr int width = 8 * sizeof(Part);
    constexpr uint64_t mask = (uint64_t{1} << width) - 1;
    return is_same<Part>(got & mask, wanted & mask) && is_same<Part>(got >> width & mask, wanted >> width & mask);
  } else {
    return got == wanted || (is_nan_bits<T>(got) && is_nan_bits<T>(wanted));
  }
}

constexpr size_t operands_max = 4;
using Operands = std::array<uint64_t, operands_max>;

/// Runs an instruction once per set of operands. In its text %d stands for the result's register
/// and %a, %b, %c, %e for the operands'; %pa to %pe are predicates that say whether an operand is
/// not zero, and %pd is one whose value becomes the result.
inline std::vector<uint64_t> run_instruction(const std::string& text, int result_bits,
                                             const std::vector<int>& operand_bits,
                                             const std::vector<Operands>& inputs) {
  std::string body;
  const char* names = "abce";
  for (size_t i = 0; i < operand_bits.size(); ++i) {
    std::string name(1, names[i]), bits = std::to_string(operand_bits[i]);
    body += "  .reg .b" + bits + " %" + name + "; .reg .pred %p" + name + ";\n";
    body += "  ld.global.b64 %raw, [%in+" + std::to_string(8 * i) + "];\n";
    body +=
        operand_bits[i] == 64 ? "  mov.b64 %" + name + ", %raw;\n" : "  cvt.u" + bits + ".u64 %" + name + ", %raw;\n";
    body += "  setp.ne.u64 %p" + name + ", %raw, 0;\n";
  }
  std::string bits = std::to_string(result_bits);
  bool gives_predicate = text.find("%pd") != std::string::npos;
  body += "  .reg .b" + bits + " %d; .reg .pred %pd;\n  " + text + "\n";
  if (gives_predicate) body += "  selp.b" + bits + " %d, 1, 0, %pd;\n";
  body += result_bits == 64 ? "  mov.b64 %raw, %d;\n" : "  cvt.u64.u" + bits + " %raw, %d;\n";

  Kernel kernel(std::string(ptx_header) +
                ".visible .entry kernel(.param .u64 in, .param .u64 out, .param .u32 count) {\n"
                "  .reg .b64 %in, %out, %raw, %offset; .reg .b32 %i, %t, %n; .reg .pred %over;\n"
                "  mov.u32 %i, %ctaid.x; mov.u32 %t, %ntid.x; mul.lo.u32 %i, %i, %t;\n"
                "  mov.u32 %t, %tid.x; add.u32 %i, %i, %t; ld.param.u32 %n, [count];\n"
                "  setp.ge.u32 %over, %i, %n; @%over ret;\n"
                "  ld.param.u64 %in, [in]; ld.param.u64 %out, [out];\n"
                "  mul.wide.u32 %offset, %i, 32; add.u64 %in, %in, %offset;\n"
                "  mul.wide.u32 %offset, %i, 8; add.u64 %out, %out, %offset;\n" +
                body + "  st.global.b64 [%out], %raw;\n  ret;\n}\n");
  Memory in(inputs.size() * sizeof(Operands)), out(inputs.size() * 8);
  std::vector<uint64_t> results(inputs.size());
  REQUIRE_OK(CU(cuMemcpyHtoD)(in.address(), inputs.data(), inputs.size() * sizeof(Operands)));
  unsigned count = static_cast<unsigned>(inputs.size());
  REQUIRE_OK(kernel.launch((count + 127) / 128, 128, nullptr, in.address(), out.address(), count));
  REQUIRE_OK(CU(cuMemcpyDtoH)(results.data(), out.address(), results.size() * 8));
  return results;
}

template <class R, class... A>
class Check;

template <class R, class... A>
class Check<R(A...)> {
 public:
  /// `compare` says whether a result will do.
  template <class Compare>
  static void run(const std::string& text, Compare compare) {
    std::vector<std::tuple<A...>> cases = operands();
    std::vector<Operands> inputs;
    for (const auto& one : cases) inputs.push_back(std::apply([](auto... v) { return Operands{bits_of(v)...}; }, one));
    std::vector<uint64_t> got = run_instruction(text, register_bits<R>(), {register_bits<A>()...}, inputs);
    for (size_t i = 0; i < cases.size(); ++i) {
      uint64_t wanted = 0;
      if (compare(cases[i], got[i], wanted)) continue;
      char line[400];
      std::snprintf(line, sizeof line, "%s of %#llx, %#llx, %#llx, %#llx: %#llx, not %#llx (TEST_SEED=%llu)",
                    text.c_str(), static_cast<unsigned long long>(inputs[i][0]),
                    static_cast<unsigned long long>(inputs[i][1]), static_cast<unsigned long long>(inputs[i][2]),
                    static_cast<unsigned long long>(inputs[i][3]), static_cast<unsigned long long>(got[i]),
                    static_cast<unsigned long long>(wanted), static_cast<unsigned long long>(seed()));
      FAIL_CHECK(line);
      return;
    }
    SUCCEED();
  }

 private:
  static std::vector<std::tuple<A...>> operands() {
    constexpr size_t random_count = 600, product_max = 5000;
    std::tuple<std::vector<A>...> all{edges<A>()...};
    size_t product = std::apply([](const auto&... v) { return (v.size() * ... * size_t{1}); }, all);
    std::vector<std::tuple<A...>> cases;
    if (product <= product_max) {
      for (size_t i = 0; i < product; ++i) {
        size_t rest = i;
        auto pick = [&](const auto& values) {
          size_t index = rest % values.size();
          rest /= values.size();
          return values[index];
        };
        // Braces: evaluated from left to right.
        cases.push_back(std::apply([&](const auto&... v) { return std::tuple<A...>{pick(v)...}; }, all));
      }
    } else {
      auto pick = [](const auto& values) { return values[generator()() % values.size()]; };
      for (size_t i = 0; i < product_max; ++i)
        cases.push_back(std::apply([&](const auto&... v) { return std::tuple<A...>{pick(v)...}; }, all));
    }
    auto mixed = []<class T>(const std::vector<T>& values) {
      return generator()() % 4 == 0 ? values[generator()() % values.size()] : random_operand<T>();
    };
    for (size_t i = 0; i < random_count; ++i)
      cases.push_back(std::apply([&](const auto&... v) { return std::tuple<A...>{mixed(v)...}; }, all));
    return cases;
  }
};

/// "add.u32" becomes "add.u32 %d, %a, %b;" for two operands; complete texts stay as they are.
inline std::string complete(const std::string& text, size_t operands) {
  if (text.find('%') != std::string::npos) return text;
  std::string result = text + " %d";
  for (size_t i = 0; i < operands; ++i) result += std::string(", %") + "abce"[i];
  return result + ";";
}

template <class Signature>
struct ArgumentCount;
template <class R, class... A>
struct ArgumentCount<R(A...)> : std::integral_constant<size_t, sizeof...(A)> {};
template <class Signature>
struct ResultOf;
template <class R, class... A>
struct ResultOf<R(A...)> {
  using type = R;
};

/// The results must be those of `reference`, bit for bit, save for the bits of NaNs.
template <class Signature, class Reference>
void check(const std::string& text, Reference reference) {
  using R = typename ResultOf<Signature>::type;
  Check<Signature>::run(complete(text, ArgumentCount<Signature>::value),
                        [&](const auto& operands, uint64_t got, uint64_t& wanted) {
                          wanted = bits_of(static_cast<R>(std::apply(reference, operands)));
                          return is_same<R>(got, wanted);
                        });
}

/// The results must be near the reference's: they may be off by `allowance(exact, operands...)`.
template <class Signature, class Allowance, class Reference>
void check_within(const std::string& text, Allowance allowance, Reference reference) {
  using R = typename ResultOf<Signature>::type;
  Check<Signature>::run(complete(text, ArgumentCount<Signature>::value),
                        [&](const auto& operands, uint64_t got, uint64_t& wanted) {
                          double exact = std::apply(reference, operands);
                          double result;
                          if constexpr (is_small_float<R>) {
                            result = value_of(R{static_cast<typename R::Bits>(got)});
                            wanted = rounded<R>(exact).bits;
                          } else if constexpr (std::is_same_v<R, float>) {
                            result = std::bit_cast<float>(static_cast<uint32_t>(got));
                            wanted = bits_of(static_cast<float>(exact));
                          } else {
                            result = std::bit_cast<double>(got);
                            wanted = bits_of(exact);
                          }
                          if (std::isnan(exact)) return std::isnan(result);
                          if (is_same<R>(got, wanted)) return true;
                          if (std::isinf(result) || std::isinf(exact)) return result == exact;
                          if (exact == 0) return false;  // also a zero of the other sign
                          double allowed = std::apply([&](auto... v) { return allowance(exact, v...); }, operands);
                          return std::fabs(result - exact) <= allowed;
                        });
}

/// |got - wanted| <= relative * |wanted| + absolute.
template <class Signature, class Reference>
void check_near(const std::string& text, double relative, double absolute, Reference reference) {
  auto allowance = [&](double exact, auto...) { return relative * std::fabs(exact) + absolute; };
  check_within<Signature>(text, allowance, reference);
}

}  // namespace softgpu_tests
