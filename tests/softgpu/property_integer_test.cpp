// Integer and bit instructions (PTX ISA 9.7.1, 9.7.2, 9.7.8).

#include "property.h"

using namespace softgpu_tests;

namespace {

using int128 = __int128;

template <class T>
std::string name(const char* instruction) {
  return std::string(instruction) + (std::is_signed_v<T> ? ".s" : ".u") + std::to_string(8 * sizeof(T));
}

template <class T>
std::string bits(const char* instruction) {
  return std::string(instruction) + ".b" + std::to_string(8 * sizeof(T));
}

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
T clamped(int128 value) {
  using L = std::numeric_limits<T>;
  if (value < L::min()) return L::min();
  if (value > L::max()) return L::max();
  return static_cast<T>(value);
}

template <class T>
constexpr int width = 8 * sizeof(T);

/// Twice as wide.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;

template <class T>
T high_part(T a, T b) {
  if constexpr (std::is_signed_v<T>) return static_cast<T>((int128{a} * b) >> width<T>);
  else return static_cast<T>((static_cast<unsigned __int128>(a) * b) >> width<T>);
}

template <class T>
void check_arithmetic() {
  using U = Unsigned<T>;
  check<T(T, T)>(name<T>("add"), [](T a, T b) { return static_cast<T>(U(U(a) + U(b))); });
  check<T(T, T)>(name<T>("sub"), [](T a, T b) { return static_cast<T>(U(U(a) - U(b))); });
  check<T(T, T)>(name<T>("mul.lo"),
                 [](T a, T b) { return static_cast<T>(static_cast<unsigned __int128>(U(a)) * U(b)); });
  check<T(T, T)>(name<T>("mul.hi"), high_part<T>);
  check<T(T, T, T)>(name<T>("mad.lo"),
                    [](T a, T b, T c) { return static_cast<T>(static_cast<unsigned __int128>(U(a)) * U(b) + U(c)); });
  check<T(T, T, T)>(name<T>("mad.hi"), [](T a, T b, T c) {
    return static_cast<T>(static_cast<U>(high_part<T>(a, b)) + static_cast<U>(c));
  });
  check<T(T, T)>(name<T>("div"), [](T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    return static_cast<T>(int128{a} / b);
  });
  check<T(T, T)>(name<T>("rem"), [](T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    return static_cast<T>(int128{a} % b);
  });
  check<T(T, T)>(name<T>("min"), [](T a, T b) { return std::min(a, b); });
  check<T(T, T)>(name<T>("max"), [](T a, T b) { return std::max(a, b); });
  check<T(T, T, T)>(name<T>("sad"), [](T a, T b, T c) {
    U distance = a > b ? static_cast<U>(U(a) - U(b)) : static_cast<U>(U(b) - U(a));
    return static_cast<T>(U(c) + distance);
  });
  if constexpr (std::is_signed_v<T>) {
    check<T(T)>(name<T>("neg"), [](T a) { return static_cast<T>(U(0) - U(a)); });
    check<T(T)>(name<T>("abs"), [](T a) { return a < 0 ? static_cast<T>(U(0) - U(a)) : a; });
  }
  if constexpr (sizeof(T) < 8) {
    using W = Wide<T>;
    check<W(T, T)>(name<T>("mul.wide"), [](T a, T b) { return static_cast<W>(W{a} * W{b}); });
    check<W(T, T, W)>(name<T>("mad.wide"), [](T a, T b, W c) {
      return static_cast<W>(static_cast<Unsigned<W>>(W{a} * W{b}) + static_cast<Unsigned<W>>(c));
    });
  }
}

template <class T>
void check_bits() {
  using S = std::make_signed_t<T>;
  check<T(T, T)>(bits<T>("and"), [](T a, T b) { return static_cast<T>(a & b); });
  check<T(T, T)>(bits<T>("or"), [](T a, T b) { return static_cast<T>(a | b); });
  check<T(T, T)>(bits<T>("xor"), [](T a, T b) { return static_cast<T>(a ^ b); });
  check<T(T)>(bits<T>("not"), [](T a) { return static_cast<T>(~a); });
  check<T(T)>(bits<T>("cnot"), [](T a) { return static_cast<T>(a == 0); });
  check<T(T, uint32_t)>(bits<T>("shl"), [](T a, uint32_t b) { return b >= width<T> ? T{0} : static_cast<T>(a << b); });
  check<T(T, uint32_t)>(bits<T>("shr"), [](T a, uint32_t b) { return b >= width<T> ? T{0} : static_cast<T>(a >> b); });
  check<S(S, uint32_t)>(name<S>("shr"),
                        [](S a, uint32_t b) { return static_cast<S>(a >> std::min(b, uint32_t{width<T> - 1})); });
  check<T(T, T, bool)>("selp.b" + std::to_string(width<T>) + " %d, %a, %b, %pc;",
                       [](T a, T b, bool c) { return c ? a : b; });
  check<T(T, T, int32_t)>("slct.b" + std::to_string(width<T>) + ".s32",
                          [](T a, T b, int32_t c) { return c >= 0 ? a : b; });
}

template <class T>
void check_counts() {
  check<uint32_t(T)>(bits<T>("popc"), [](T a) { return std::popcount(a); });
  check<uint32_t(T)>(bits<T>("clz"), [](T a) { return std::countl_zero(a); });
  check<T(T)>(bits<T>("brev"), [](T a) {
    T result = 0;
    for (int i = 0; i < width<T>; ++i) result |= (a >> i & 1) << (width<T> - 1 - i);
    return result;
  });
  auto find = [](auto a) {
    auto u = static_cast<T>(a < 0 ? ~a : a);
    return u == 0 ? ~0u : static_cast<uint32_t>(width<T> - 1 - std::countl_zero(u));
  };
  using S = std::make_signed_t<T>;
  check<uint32_t(T)>(name<T>("bfind"), find);
  check<uint32_t(S)>(name<S>("bfind"), find);
  check<uint32_t(T)>(name<T>("bfind.shiftamt"), [&](T a) { return a == 0 ? ~0u : width<T> - 1 - find(a); });
  check<uint32_t(S)>(name<S>("bfind.shiftamt"), [&](S a) { return find(a) == ~0u ? ~0u : width<T> - 1 - find(a); });
}

/// PTX ISA, bfe: positions and lengths are taken modulo 256; what lies beyond the top is the sign.
template <class T>
T extract_field(T a, uint32_t position, uint32_t length) {
  uint32_t pos = position & 0xff, len = length & 0xff, top = width<T> - 1;
  bool sign = false;
  if (std::is_signed_v<T> && len != 0) sign = static_cast<Unsigned<T>>(a) >> std::min(pos + len - 1, top) & 1;
  Unsigned<T> result = 0;
  for (uint32_t i = 0; i <= top; ++i) {
    bool bit = i < len && pos + i <= top ? static_cast<Unsigned<T>>(a) >> (pos + i) & 1 : sign;
    result |= static_cast<Unsigned<T>>(bit) << i;
  }
  return static_cast<T>(result);
}

template <class T>
T insert_field(T a, T b, uint32_t position, uint32_t length) {
  T result = b;
  uint32_t pos = position & 0xff, len = length & 0xff;
  for (uint32_t i = 0; i < len && pos + i < width<T>; ++i) {
    T bit = T{1} << (pos + i);
    result = static_cast<T>((result & ~bit) | ((a >> i & 1) << (pos + i)));
  }
  return result;
}

}  // namespace

TEST_CASE("integer arithmetic") {
  Context context;
  check_arithmetic<int16_t>();
  check_arithmetic<uint16_t>();
  check_arithmetic<int32_t>();
  check_arithmetic<uint32_t>();
  check_arithmetic<int64_t>();
  check_arithmetic<uint64_t>();
}

TEST_CASE("saturating integer arithmetic") {
  Context context;
  using T = int32_t;
  check<T(T, T)>("add.sat.s32", [](T a, T b) { return clamped<T>(int128{a} + b); });
  check<T(T, T)>("sub.sat.s32", [](T a, T b) { return clamped<T>(int128{a} - b); });
  check<T(T, T, T)>("mad.hi.sat.s32", [](T a, T b, T c) { return clamped<T>(int128{high_part<T>(a, b)} + c); });
}

TEST_CASE("24-bit multiplication") {
  Context context;
  auto low_u = [](uint32_t a) { return uint64_t{a & 0xffffff}; };
  auto low_s = [](int32_t a) { return int64_t{static_cast<int32_t>(static_cast<uint32_t>(a) << 8) >> 8}; };
  check<uint32_t(uint32_t, uint32_t)>("mul24.lo.u32",
                                      [&](auto a, auto b) { return static_cast<uint32_t>(low_u(a) * low_u(b)); });
  check<uint32_t(uint32_t, uint32_t)>("mul24.hi.u32",
                                      [&](auto a, auto b) { return static_cast<uint32_t>(low_u(a) * low_u(b) >> 16); });
  check<int32_t(int32_t, int32_t)>("mul24.lo.s32",
                                   [&](auto a, auto b) { return static_cast<int32_t>(low_s(a) * low_s(b)); });
  check<int32_t(int32_t, int32_t)>("mul24.hi.s32",
                                   [&](auto a, auto b) { return static_cast<int32_t>(low_s(a) * low_s(b) >> 16); });
  check<uint32_t(uint32_t, uint32_t, uint32_t)>(
      "mad24.lo.u32", [&](auto a, auto b, auto c) { return static_cast<uint32_t>(low_u(a) * low_u(b)) + c; });
  check<int32_t(int32_t, int32_t, int32_t)>("mad24.hi.sat.s32", [&](auto a, auto b, auto c) {
    return clamped<int32_t>(int128{low_s(a) * low_s(b) >> 16} + c);
  });
}

TEST_CASE("chains with carry") {
  Context context;
  using T = uint64_t;
  const char* with_parts = "{ .reg .b32 %al, %ah, %bl, %bh, %dl, %dh; mov.b64 {%al, %ah}, %a; mov.b64 {%bl, %bh}, %b; ";
  std::string start = with_parts, end = " mov.b64 %d, {%dl, %dh}; }";
  check<T(T, T)>(start + "add.cc.u32 %dl, %al, %bl; addc.u32 %dh, %ah, %bh;" + end, [](T a, T b) { return a + b; });
  check<T(T, T)>(start + "sub.cc.u32 %dl, %al, %bl; subc.u32 %dh, %ah, %bh;" + end, [](T a, T b) { return a - b; });
  // The whole product of a and the low half of b: the part above 2^32.
  check<T(T, T)>(start +
                     "mul.hi.u32 %dl, %al, %bl; mad.lo.cc.u32 %dl, %ah, %bl, %dl;"
                     "madc.hi.u32 %dh, %ah, %bl, 0;" +
                     end,
                 [](T a, T b) { return static_cast<T>((static_cast<unsigned __int128>(a) * (b & ~0u)) >> 32); });
  // Subtraction leaves a carry where nothing was borrowed.
  check<T(T, T)>("{ .reg .b64 %x; sub.cc.u64 %x, %a, %b; addc.u64 %d, 0, 0; }", [](T a, T b) { return T{a >= b}; });
  check<T(T, T, T)>("{ .reg .b64 %x; add.cc.u64 %x, %a, %b; subc.u64 %d, %c, 0; }",
                    [](T a, T b, T c) { return c - (a + b >= a); });
  check<T(T, T, T)>("{ .reg .b64 %x; mad.hi.cc.u64 %x, %a, %b, %c; addc.u64 %d, 0, 0; }",
                    [](T a, T b, T c) { return T{high_part<T>(a, b) + c < c}; });
  check<int64_t(int64_t, int64_t, int64_t)>(
      "{ .reg .b64 %x; add.cc.s64 %x, %a, %a; madc.hi.s64 %d, %a, %b, %c; }", [](int64_t a, int64_t b, int64_t c) {
        uint64_t carry = static_cast<uint64_t>(a) >> 63;
        return static_cast<int64_t>(static_cast<uint64_t>(high_part<int64_t>(a, b)) + static_cast<uint64_t>(c) + carry);
      });
}

TEST_CASE("bits") {
  Context context;
  check_bits<uint16_t>();
  check_bits<uint32_t>();
  check_bits<uint64_t>();
  check_counts<uint32_t>();
  check_counts<uint64_t>();
  check<bool(bool, bool)>("and.pred %pd, %pa, %pb;", [](bool a, bool b) { return a && b; });
  check<bool(bool, bool)>("or.pred %pd, %pa, %pb;", [](bool a, bool b) { return a || b; });
  check<bool(bool, bool)>("xor.pred %pd, %pa, %pb;", [](bool a, bool b) { return a != b; });
  check<bool(bool)>("not.pred %pd, %pa;", [](bool a) { return !a; });
}

TEST_CASE("bit fields") {
  Context context;
  check<uint32_t(uint32_t, uint32_t, uint32_t)>("bfe.u32", extract_field<uint32_t>);
  check<int32_t(int32_t, uint32_t, uint32_t)>("bfe.s32", extract_field<int32_t>);
  check<uint64_t(uint64_t, uint32_t, uint32_t)>("bfe.u64", extract_field<uint64_t>);
  check<int64_t(int64_t, uint32_t, uint32_t)>("bfe.s64", extract_field<int64_t>);
  check<uint32_t(uint32_t, uint32_t, uint32_t, uint32_t)>("bfi.b32", insert_field<uint32_t>);
  check<uint64_t(uint64_t, uint64_t, uint32_t, uint32_t)>("bfi.b64", insert_field<uint64_t>);
  auto mask = [](uint32_t position, uint32_t length) {
    uint32_t result = 0;
    for (uint32_t i = position; i < 32 && i - position < length; ++i) result |= 1u << i;
    return result;
  };
  check<uint32_t(uint32_t, uint32_t)>("bmsk.clamp.b32", [&](auto a, auto b) { return mask(a, b); });
  check<uint32_t(uint32_t, uint32_t)>("bmsk.wrap.b32", [&](auto a, auto b) { return mask(a & 31, b & 31); });
  auto extended = [](uint32_t a, uint32_t places, bool is_signed) {
    if (places == 0) return 0u;
    if (places > 31) return a;
    uint32_t low = a & ((1u << places) - 1);
    return is_signed && low >> (places - 1) ? low | ~0u << places : low;
  };
  check<uint32_t(uint32_t, uint32_t)>("szext.clamp.u32", [&](auto a, auto b) { return extended(a, b, false); });
  check<uint32_t(uint32_t, uint32_t)>("szext.clamp.s32", [&](auto a, auto b) { return extended(a, b, true); });
  check<uint32_t(uint32_t, uint32_t)>("szext.wrap.u32", [&](auto a, auto b) { return extended(a, b & 31, false); });
  check<uint32_t(uint32_t, uint32_t)>("szext.wrap.s32", [&](auto a, auto b) { return extended(a, b & 31, true); });
  check<uint32_t(uint32_t, uint32_t, int32_t)>("{ .reg .b32 %m; and.b32 %m, %b, 31; fns.b32 %d, %a, %m, %c; }",
                                               [](uint32_t set, uint32_t base, int32_t n) {
                                                 base &= 31;
                                                 int step = n < 0 ? -1 : 1;
                                                 int64_t left = std::abs(int64_t{n});
                                                 if (n == 0) return set >> base & 1 ? base : ~0u;
                                                 for (int i = static_cast<int>(base); i >= 0 && i < 32; i += step)
                                                   if (set >> i & 1 && --left == 0) return static_cast<uint32_t>(i);
                                                 return ~0u;
                                               });
}

TEST_CASE("bytes and shifts of two registers") {
  Context context;
  using T = uint32_t;
  auto byte = [](T a, T b, T index) { return ((uint64_t{b} << 32 | a) >> (8 * (index & 7))) & 0xff; };
  auto joined = [](T b0, T b1, T b2, T b3) { return b0 | b1 << 8 | b2 << 16 | b3 << 24; };
  check<T(T, T, T)>("prmt.b32", [&](T a, T b, T c) {
    T result = 0;
    for (int i = 0; i < 4; ++i) {
      T selector = c >> (4 * i) & 15, value = static_cast<T>(byte(a, b, selector));
      if (selector & 8) value = value & 0x80 ? 0xff : 0;
      result |= value << (8 * i);
    }
    return result;
  });
  auto modes = [&](const char* mode, auto indices) {
    check<T(T, T, T)>(std::string("prmt.b32.") + mode, [&](T a, T b, T c) {
      std::array<T, 4> i = indices(c & 3);
      return joined(static_cast<T>(byte(a, b, i[0])), static_cast<T>(byte(a, b, i[1])),
                    static_cast<T>(byte(a, b, i[2])), static_cast<T>(byte(a, b, i[3])));
    });
  };
  using I = std::array<T, 4>;
  modes("f4e", [](T c) { return I{c, c + 1, c + 2, c + 3}; });
  modes("b4e", [](T c) { return I{c, (c + 7) & 7, (c + 6) & 7, (c + 5) & 7}; });
  modes("rc8", [](T c) { return I{c, c, c, c}; });
  modes("ecl", [](T c) { return I{c, std::max(c, 1u), std::max(c, 2u), 3}; });
  modes("ecr", [](T c) { return I{0, std::min(c, 1u), std::min(c, 2u), c}; });
  modes("rc16", [](T c) { return c & 1 ? I{2, 3, 2, 3} : I{0, 1, 0, 1}; });

  auto both = [](T a, T b) { return uint64_t{b} << 32 | a; };
  check<T(T, T, T)>("shf.l.wrap.b32", [&](T a, T b, T c) { return static_cast<T>(both(a, b) << (c & 31) >> 32); });
  check<T(T, T, T)>("shf.r.wrap.b32", [&](T a, T b, T c) { return static_cast<T>(both(a, b) >> (c & 31)); });
  check<T(T, T, T)>("shf.l.clamp.b32",
                    [&](T a, T b, T c) { return c >= 32 ? a : static_cast<T>(both(a, b) << c >> 32); });
  check<T(T, T, T)>("shf.r.clamp.b32", [&](T a, T b, T c) { return c >= 32 ? b : static_cast<T>(both(a, b) >> c); });
  for (unsigned table : {0x80u, 0xf8u, 0x1du, 0x96u, 0xe8u, 0u, 255u})
    check<T(T, T, T)>("lop3.b32 %d, %a, %b, %c, " + std::to_string(table) + ";", [&](T a, T b, T c) {
      T result = 0;
      for (int i = 0; i < 32; ++i) {
        T index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
        result |= (table >> index & 1) << i;
      }
      return result;
    });
}

TEST_CASE("dot products and pairs") {
  Context context;
  using T = uint32_t;
  auto dot4 = [](T a, T b, T c, bool a_signed, bool b_signed) {
    for (int i = 0; i < 4; ++i) {
      T x = a >> (8 * i) & 0xff, y = b >> (8 * i) & 0xff;
      int p = a_signed ? static_cast<int8_t>(x) : static_cast<int>(x);
      int q = b_signed ? static_cast<int8_t>(y) : static_cast<int>(y);
      c += static_cast<T>(p * q);
    }
    return c;
  };
  auto dot2 = [](T a, T b, T c, bool a_signed, bool b_signed, int first) {
    for (int i = 0; i < 2; ++i) {
      T x = a >> (16 * i) & 0xffff, y = b >> (8 * (first + i)) & 0xff;
      int64_t p = a_signed ? static_cast<int16_t>(x) : static_cast<int>(x);
      int64_t q = b_signed ? static_cast<int8_t>(y) : static_cast<int>(y);
      c += static_cast<T>(p * q);
    }
    return c;
  };
  for (bool a : {false, true}) {
    for (bool b : {false, true}) {
      std::string types = std::string(a ? ".s32" : ".u32") + (b ? ".s32" : ".u32");
      check<T(T, T, T)>("dp4a" + types, [&](T x, T y, T z) { return dot4(x, y, z, a, b); });
      check<T(T, T, T)>("dp2a.lo" + types, [&](T x, T y, T z) { return dot2(x, y, z, a, b, 0); });
      check<T(T, T, T)>("dp2a.hi" + types, [&](T x, T y, T z) { return dot2(x, y, z, a, b, 2); });
    }
  }
  using S = Pair<int16_t>;
  using U = Pair<uint16_t>;
  check<U(U, U)>("add.u16x2", [](U a, U b) {
    return U{static_cast<uint16_t>(a.low + b.low), static_cast<uint16_t>(a.high + b.high)};
  });
  check<U(U, U)>("min.u16x2", [](U a, U b) { return U{std::min(a.low, b.low), std::min(a.high, b.high)}; });
  check<S(S, S)>("max.s16x2", [](S a, S b) { return S{std::max(a.low, b.low), std::max(a.high, b.high)}; });
  check<S(S, S)>("min.s16x2.relu", [](S a, S b) {
    auto relu = [](int16_t v) { return std::max<int16_t>(v, 0); };
    return S{relu(std::min(a.low, b.low)), relu(std::min(a.high, b.high))};
  });
}

TEST_CASE("integer comparisons") {
  Context context;
  auto compare = [&]<class T>(T) {
    auto one = [&](const char* relation, auto function) {
      std::string text =
          "setp." + std::string(relation) + "." + (std::is_signed_v<T> ? "s" : "u") + std::to_string(width<T>);
      check<bool(T, T)>(text + " %pd, %a, %b;", function);
      check<bool(T, T, bool)>("setp." + std::string(relation) + ".and." + (std::is_signed_v<T> ? "s" : "u") +
                                  std::to_string(width<T>) + " %pd, %a, %b, !%pc;",
                              [&](T a, T b, bool c) { return function(a, b) && !c; });
      check<uint32_t(T, T)>(
          "set." + std::string(relation) + ".u32." + (std::is_signed_v<T> ? "s" : "u") + std::to_string(width<T>),
          [&](T a, T b) { return function(a, b) ? ~0u : 0u; });
    };
    one("eq", [](T a, T b) { return a == b; });
    one("ne", [](T a, T b) { return a != b; });
    one("lt", [](T a, T b) { return a < b; });
    one("le", [](T a, T b) { return a <= b; });
    one("gt", [](T a, T b) { return a > b; });
    one("ge", [](T a, T b) { return a >= b; });
  };
  compare(int16_t{});
  compare(uint16_t{});
  compare(int32_t{});
  compare(uint32_t{});
  compare(int64_t{});
  compare(uint64_t{});
  // The two results of one comparison, and the unsigned names of the relations.
  check<bool(uint32_t, uint32_t)>("{ .reg .pred %q; setp.lo.u32 %pd|%q, %a, %b; xor.pred %pd, %pd, %q; }",
                                  [](uint32_t, uint32_t) { return true; });
  check<bool(uint32_t, uint32_t, bool)>("setp.hs.xor.u32 %pd, %a, %b, %pc;",
                                        [](uint32_t a, uint32_t b, bool c) { return (a >= b) != c; });
  check<bool(uint32_t, uint32_t, bool)>("setp.ls.or.u32 %pd, %a, %b, %pc;",
                                        [](uint32_t a, uint32_t b, bool c) { return a <= b || c; });
  check<float(int32_t, int32_t)>("set.lt.f32.s32", [](int32_t a, int32_t b) { return a < b ? 1.0f : 0.0f; });
}
