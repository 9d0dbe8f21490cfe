#include "exec/ops/integer.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "exec/ops/elementwise.h"

namespace fargpu::softgpu::ops {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
struct WiderOf;
template <>
struct WiderOf<uint16_t> {
  using type = uint32_t;
};
template <>
struct WiderOf<int16_t> {
  using type = int32_t;
};
template <>
struct WiderOf<uint32_t> {
  using type = uint64_t;
};
template <>
struct WiderOf<int32_t> {
  using type = int64_t;
};
template <>
struct WiderOf<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct WiderOf<int64_t> {
  using type = __int128;
};
template <class T>
using Wider = typename WiderOf<T>::type;

/// Arithmetic of T that wraps around. uint16_t is widened first: its product overflows int.
template <class T>
T wrap_add(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}
template <class T>
T wrap_sub(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
}
template <class T>
T wrap_mul(T a, T b) {
  using Wide = std::common_type_t<Unsigned<T>, uint32_t>;
  return static_cast<T>(static_cast<Wide>(static_cast<Unsigned<T>>(a)) *
                        static_cast<Wide>(static_cast<Unsigned<T>>(b)));
}

template <class T, class Wide>
T clamp_to(Wide value) {
  return static_cast<T>(std::clamp<Wide>(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

template <class T>
struct Add {
  static T apply(T a, T b) { return wrap_add(a, b); }
};
template <class T>
struct AddSaturate {
  static T apply(T a, T b) { return clamp_to<T>(Wider<T>{a} + Wider<T>{b}); }
};
template <class T>
struct Subtract {
  static T apply(T a, T b) { return wrap_sub(a, b); }
};
template <class T>
struct SubtractSaturate {
  static T apply(T a, T b) { return clamp_to<T>(Wider<T>{a} - Wider<T>{b}); }
};
template <class T>
struct MultiplyLo {
  static T apply(T a, T b) { return wrap_mul(a, b); }
};
template <class T>
T multiply_high(T a, T b) {
  return static_cast<T>((Wider<T>{a} * Wider<T>{b}) >> (8 * sizeof(T)));
}
template <class T>
struct MultiplyHi {
  static T apply(T a, T b) { return multiply_high(a, b); }
};
template <class T>
struct MultiplyWide {
  static Wider<T> apply(T a, T b) { return Wider<T>{a} * Wider<T>{b}; }
};
template <class T>
struct MultiplyAddLo {
  static T apply(T a, T b, T c) { return wrap_add(wrap_mul(a, b), c); }
};
template <class T>
struct MultiplyAddHi {
  static T apply(T a, T b, T c) { return wrap_add(multiply_high(a, b), c); }
};
struct MultiplyAddHiSaturate {
  static int32_t apply(int32_t a, int32_t b, int32_t c) { return clamp_to<int32_t>(int64_t{multiply_high(a, b)} + c); }
};
template <class T>
struct MultiplyAddWide {
  static Wider<T> apply(T a, T b, Wider<T> c) { return wrap_add<Wider<T>>(Wider<T>{a} * b, c); }
};

/// The low 24 bits of an operand, extended to 32.
template <class T>
T low_24(T value) {
  return static_cast<T>(static_cast<T>(static_cast<uint32_t>(value) << 8) >> 8);
}
template <class T>
int64_t product_24(T a, T b) {
  return int64_t{low_24(a)} * int64_t{low_24(b)};
}
template <class T>
struct Multiply24Lo {
  static T apply(T a, T b) { return static_cast<T>(product_24(a, b)); }
};
template <class T>
struct Multiply24Hi {
  static T apply(T a, T b) { return static_cast<T>(product_24(a, b) >> 16); }
};
template <class T>
struct MultiplyAdd24Lo {
  static T apply(T a, T b, T c) { return wrap_add(Multiply24Lo<T>::apply(a, b), c); }
};
template <class T>
struct MultiplyAdd24Hi {
  static T apply(T a, T b, T c) { return wrap_add(Multiply24Hi<T>::apply(a, b), c); }
};
struct MultiplyAdd24HiSaturate {
  static int32_t apply(int32_t a, int32_t b, int32_t c) {
    return clamp_to<int32_t>(int64_t{Multiply24Hi<int32_t>::apply(a, b)} + c);
  }
};

template <class T>
struct SumOfAbsoluteDifference {
  static T apply(T a, T b, T c) { return wrap_add(c, a < b ? wrap_sub(b, a) : wrap_sub(a, b)); }
};

// Division by zero gives what the hardware's sequence gives: all ones, and the dividend as rest.
template <class T>
struct Divide {
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return wrap_sub<T>(0, a);
    return static_cast<T>(a / b);
  }
};
template <class T>
struct Remainder {
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};

template <class T>
struct Absolute {
  static T apply(T a) { return a < 0 ? wrap_sub<T>(0, a) : a; }
};
template <class T>
struct Negate {
  static T apply(T a) { return wrap_sub<T>(0, a); }
};
template <class T>
struct Minimum {
  static T apply(T a, T b) { return a < b ? a : b; }
};
template <class T>
struct Maximum {
  static T apply(T a, T b) { return a < b ? b : a; }
};
template <class T>
struct MinimumRelu {
  static T apply(T a, T b) { return std::max<T>(std::min(a, b), 0); }
};
template <class T>
struct MaximumRelu {
  static T apply(T a, T b) { return std::max<T>(std::max(a, b), 0); }
};

/// An operation on each half of a 32-bit register.
template <template <class> class Op, class T>
struct Paired {
  static uint32_t apply(uint32_t a, uint32_t b) {
    auto low = Op<T>::apply(static_cast<T>(a), static_cast<T>(b));
    auto high = Op<T>::apply(static_cast<T>(a >> 16), static_cast<T>(b >> 16));
    return static_cast<uint16_t>(low) | static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
  }
};

template <class A, class B>
struct DotProduct4 {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8)
      c += static_cast<uint32_t>(int32_t{static_cast<A>(a >> i)} * int32_t{static_cast<B>(b >> i)});
    return c;
  }
};
/// The 16-bit halves of a times two neighbouring bytes of b.
template <class A, class B, int first_byte>
struct DotProduct2 {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 2; ++i)
      c += static_cast<uint32_t>(static_cast<int32_t>(static_cast<A>(a >> (16 * i))) *
                                 static_cast<int32_t>(static_cast<B>(b >> (8 * (first_byte + i)))));
    return c;
  }
};

uint32_t byte_distance(uint32_t a, uint32_t b) { return a < b ? b - a : a - b; }

struct AbsoluteDifference4Add {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) c += byte_distance((a >> i) & 0xff, (b >> i) & 0xff);
    return c;
  }
};
struct AbsoluteDifference4 {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t) {
    uint32_t result = 0;
    for (int i = 0; i < 32; i += 8) result |= byte_distance((a >> i) & 0xff, (b >> i) & 0xff) << i;
    return result;
  }
};

template <class T>
struct And {
  static T apply(T a, T b) { return a & b; }
};
template <class T>
struct Or {
  static T apply(T a, T b) { return a | b; }
};
template <class T>
struct Xor {
  static T apply(T a, T b) { return a ^ b; }
};
template <class T>
struct Not {
  static T apply(T a) { return static_cast<T>(~a); }
};
template <class T>
struct LogicalNot {
  static T apply(T a) { return a == 0; }
};

// Shift amounts are unsigned and clamped to the width.
template <class T>
struct ShiftLeft {
  static T apply(T a, uint32_t count) {
    constexpr uint32_t width = 8 * sizeof(T);
    using Wide = std::common_type_t<T, uint32_t>;
    return count < width ? static_cast<T>(static_cast<Wide>(a) << count) : T{0};
  }
};
template <class T>
struct ShiftRight {
  static T apply(T a, uint32_t count) {
    constexpr uint32_t width = 8 * sizeof(T);
    if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (count < width ? count : width - 1));
    else return count < width ? static_cast<T>(a >> count) : T{0};
  }
};

template <bool wrap>
uint32_t funnel_count(uint32_t count) {
  return wrap ? count & 31 : std::min(count, 32u);
}
template <bool wrap>
struct FunnelLeft {
  static uint32_t apply(uint32_t low, uint32_t high, uint32_t count) {
    uint64_t both = uint64_t{high} << 32 | low;
    return static_cast<uint32_t>((both << funnel_count<wrap>(count)) >> 32);
  }
};
template <bool wrap>
struct FunnelRight {
  static uint32_t apply(uint32_t low, uint32_t high, uint32_t count) {
    uint64_t both = uint64_t{high} << 32 | low;
    return static_cast<uint32_t>(both >> funnel_count<wrap>(count));
  }
};

template <class T>
T low_bits(uint32_t count) {
  return count >= 8 * sizeof(T) ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << count) - 1);
}

template <class T>
struct ExtractBits {
  static T apply(T a, uint32_t position, uint32_t length) {
    using U = Unsigned<T>;
    constexpr uint32_t width = 8 * sizeof(T);
    position &= 0xff;
    length &= 0xff;
    if (length == 0) return 0;
    U field = position < width ? static_cast<U>(static_cast<U>(a) >> position) : U{0};
    U mask = low_bits<U>(length);
    bool is_negative = false;
    if constexpr (std::is_signed_v<T>) {
      uint32_t sign_position = std::min(position + length - 1, width - 1);
      is_negative = (static_cast<U>(a) >> sign_position) & 1;
    }
    // Bits above the field, and those beyond the end of a, take the sign.
    U available = position < width ? low_bits<U>(width - position) : U{0};
    U taken = mask & available;
    return static_cast<T>((field & taken) | (is_negative ? static_cast<U>(~taken) : U{0}));
  }
};

template <class T>
struct InsertBits {
  static T apply(T field, T into, uint32_t position, uint32_t length) {
    constexpr uint32_t width = 8 * sizeof(T);
    position &= 0xff;
    length &= 0xff;
    if (position >= width || length == 0) return into;
    T mask = static_cast<T>(low_bits<T>(length) << position);
    return (into & ~mask) | (static_cast<T>(field << position) & mask);
  }
};

template <class T, bool shift_amount>
struct FindLeadingBit {
  static uint32_t apply(T a) {
    using U = Unsigned<T>;
    U bits = static_cast<U>(a);
    if constexpr (std::is_signed_v<T>)
      if (a < 0) bits = static_cast<U>(~bits);
    if (bits == 0) return ~0u;
    uint32_t position = 8 * sizeof(T) - 1 - static_cast<uint32_t>(std::countl_zero(bits));
    return shift_amount ? 8 * sizeof(T) - 1 - position : position;
  }
};

/// PTX ISA: fns. The n-th set bit from `base` on, upwards for positive offsets.
struct FindNthBit {
  static uint32_t apply(uint32_t mask, uint32_t base, int32_t offset) {
    if (base > 31) return ~0u;
    if (offset == 0) return has_lane(mask, static_cast<int>(base)) ? base : ~0u;
    int step = offset > 0 ? 1 : -1;
    int64_t remaining = offset > 0 ? offset : -int64_t{offset};
    for (int position = static_cast<int>(base); position >= 0 && position < 32; position += step)
      if (has_lane(mask, position) && --remaining == 0) return static_cast<uint32_t>(position);
    return ~0u;
  }
};

template <class T>
struct ReverseBits {
  static T apply(T a) {
    T result = 0;
    for (uint32_t i = 0; i < 8 * sizeof(T); ++i) result |= ((a >> i) & 1) << (8 * sizeof(T) - 1 - i);
    return result;
  }
};
template <class T>
struct CountLeadingZeros {
  static uint32_t apply(T a) { return static_cast<uint32_t>(std::countl_zero(a)); }
};
template <class T>
struct PopulationCount {
  static uint32_t apply(T a) { return static_cast<uint32_t>(std::popcount(a)); }
};

template <class T, bool wrap>
struct SignOrZeroExtend {
  static T apply(T a, uint32_t bits) {
    if (wrap) bits &= 31;
    if (bits == 0) return 0;
    if (bits > 31) return a;
    T shifted = static_cast<T>(static_cast<uint32_t>(a) << (32 - bits));
    return static_cast<T>(shifted >> (32 - bits));
  }
};

template <bool wrap>
struct BitMask {
  static uint32_t apply(uint32_t position, uint32_t length) {
    if (wrap) {
      position &= 31;
      length &= 31;
    } else {
      if (position > 31) return 0;
      length = std::min(length, 32u);
    }
    return static_cast<uint32_t>(uint64_t{low_bits<uint32_t>(length)} << position);
  }
};

uint32_t byte_of(uint64_t bytes, uint32_t index) { return static_cast<uint32_t>(bytes >> (8 * (index & 7))) & 0xff; }

template <PermuteMode mode>
struct Permute {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = uint64_t{b} << 32 | a;
    uint32_t result = 0;
    uint32_t s = selector & 3;
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t value;
      if constexpr (mode == PermuteMode::index) {
        uint32_t choice = (selector >> (4 * i)) & 0xf;
        value = byte_of(bytes, choice & 7);
        if (choice & 8) value = value & 0x80 ? 0xff : 0;  // the sign, replicated
      } else if constexpr (mode == PermuteMode::f4e) {
        value = byte_of(bytes, s + i);
      } else if constexpr (mode == PermuteMode::b4e) {
        value = byte_of(bytes, s - i);
      } else if constexpr (mode == PermuteMode::rc8) {
        value = byte_of(bytes, s);
      } else if constexpr (mode == PermuteMode::ecl) {
        value = byte_of(bytes, std::max(i, s));
      } else if constexpr (mode == PermuteMode::ecr) {
        value = byte_of(bytes, std::min(i, s));
      } else {
        value = byte_of(bytes, 2 * (s & 1) + (i & 1));
      }
      result |= value << (8 * i);
    }
    return result;
  }
};

template <class T, CarryOp op>
const Instruction* run_with_carry(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  using Wide = Wider<T>;
  T* result = warp.lanes<T>(instruction.operands[0]);
  const T* a = warp.lanes<T>(instruction.operands[2]);
  const T* b = warp.lanes<T>(instruction.operands[3]);
  const T* c = warp.lanes<T>(instruction.operands[4]);
  LaneMask carry_in = warp.predicate(instruction.operands[5]);
  LaneMask carry_out = 0;
  for_each_lane(lanes, [&](int lane) {
    Wide carry = (carry_in >> lane) & 1;
    Wide value;
    if constexpr (op == CarryOp::add) value = Wide{a[lane]} + b[lane] + carry;
    else if constexpr (op == CarryOp::subtract) value = Wide{a[lane]} + static_cast<T>(~b[lane]) + carry;
    else if constexpr (op == CarryOp::multiply_add_lo) value = Wide{wrap_mul(a[lane], b[lane])} + c[lane] + carry;
    else value = Wide{multiply_high(a[lane], b[lane])} + c[lane] + carry;
    result[lane] = static_cast<T>(value);
    carry_out |= static_cast<LaneMask>((value >> (8 * sizeof(T))) & 1) << lane;
  });
  warp.set_predicate(instruction.operands[1], lanes, carry_out);
  return &instruction + 1;
}

/// The high part of signed products differs from that of unsigned ones.
template <class T>
const Instruction* run_signed_high_with_carry(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  using U = Unsigned<T>;
  T* result = warp.lanes<T>(instruction.operands[0]);
  const T* a = warp.lanes<T>(instruction.operands[2]);
  const T* b = warp.lanes<T>(instruction.operands[3]);
  const U* c = warp.lanes<U>(instruction.operands[4]);
  LaneMask carry_in = warp.predicate(instruction.operands[5]);
  LaneMask carry_out = 0;
  for_each_lane(lanes, [&](int lane) {
    U high = static_cast<U>(multiply_high(a[lane], b[lane]));
    Wider<U> value = Wider<U>{high} + c[lane] + ((carry_in >> lane) & 1);
    result[lane] = static_cast<T>(value);
    carry_out |= static_cast<LaneMask>((value >> (8 * sizeof(T))) & 1) << lane;
  });
  warp.set_predicate(instruction.operands[1], lanes, carry_out);
  return &instruction + 1;
}

const Instruction* run_lop3(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  uint32_t* result = warp.lanes<uint32_t>(instruction.operands[0]);
  const uint32_t* a = warp.lanes<uint32_t>(instruction.operands[1]);
  const uint32_t* b = warp.lanes<uint32_t>(instruction.operands[2]);
  const uint32_t* c = warp.lanes<uint32_t>(instruction.operands[3]);
  Lanes<uint32_t> value = {};
  for (uint32_t term = 0; term < 8; ++term) {
    if (!((instruction.immediate >> term) & 1)) continue;
    uint32_t flip_a = term & 4 ? 0 : ~0u, flip_b = term & 2 ? 0 : ~0u, flip_c = term & 1 ? 0 : ~0u;
    for (int lane = 0; lane < warp_size; ++lane)
      value.lane[lane] |= (a[lane] ^ flip_a) & (b[lane] ^ flip_b) & (c[lane] ^ flip_c);
  }
  for_each_lane(lanes, [&](int lane) { result[lane] = value.lane[lane]; });
  return &instruction + 1;
}

// ---- choosing by type ----------------------------------------------------------------------------------------------

template <template <class> class Op>
Handler signed_or_unsigned(Type type) {
  switch (type) {
    case Type::u16: return elementwise<Op<uint16_t>>();
    case Type::u32: return elementwise<Op<uint32_t>>();
    case Type::u64: return elementwise<Op<uint64_t>>();
    case Type::s16: return elementwise<Op<int16_t>>();
    case Type::s32: return elementwise<Op<int32_t>>();
    case Type::s64: return elementwise<Op<int64_t>>();
    default: return nullptr;
  }
}

/// For operations without vector instructions.
template <template <class> class Op>
Handler scalar_signed_or_unsigned(Type type) {
  switch (type) {
    case Type::u16: return scalar_elementwise<Op<uint16_t>>();
    case Type::u32: return scalar_elementwise<Op<uint32_t>>();
    case Type::u64: return scalar_elementwise<Op<uint64_t>>();
    case Type::s16: return scalar_elementwise<Op<int16_t>>();
    case Type::s32: return scalar_elementwise<Op<int32_t>>();
    case Type::s64: return scalar_elementwise<Op<int64_t>>();
    default: return nullptr;
  }
}

template <template <class> class Op>
Handler narrow_signed_or_unsigned(Type type) {
  switch (type) {
    case Type::u16: return elementwise<Op<uint16_t>>();
    case Type::u32: return elementwise<Op<uint32_t>>();
    case Type::s16: return elementwise<Op<int16_t>>();
    case Type::s32: return elementwise<Op<int32_t>>();
    default: return nullptr;
  }
}

template <template <class> class Op>
Handler signed_only(Type type) {
  switch (type) {
    case Type::s16: return elementwise<Op<int16_t>>();
    case Type::s32: return elementwise<Op<int32_t>>();
    case Type::s64: return elementwise<Op<int64_t>>();
    default: return nullptr;
  }
}

template <template <class> class Op>
Handler bits_16_to_64(Type type) {
  switch (type) {
    case Type::b16: return elementwise<Op<uint16_t>>();
    case Type::b32: return elementwise<Op<uint32_t>>();
    case Type::b64: return elementwise<Op<uint64_t>>();
    default: return nullptr;
  }
}

template <template <class> class Op>
Handler bits_32_or_64(Type type) {
  switch (type) {
    case Type::b32: return elementwise<Op<uint32_t>>();
    case Type::b64: return elementwise<Op<uint64_t>>();
    default: return nullptr;
  }
}

template <template <class> class Op>
Handler of_32_or_64(Type type) {
  switch (type) {
    case Type::u32: return elementwise<Op<uint32_t>>();
    case Type::u64: return elementwise<Op<uint64_t>>();
    case Type::s32: return elementwise<Op<int32_t>>();
    case Type::s64: return elementwise<Op<int64_t>>();
    default: return nullptr;
  }
}

template <template <class> class Op>
Handler scalar_of_32(Type type) {
  switch (type) {
    case Type::u32: return scalar_elementwise<Op<uint32_t>>();
    case Type::s32: return scalar_elementwise<Op<int32_t>>();
    default: return nullptr;
  }
}

template <class T>
using FindPosition = FindLeadingBit<T, false>;
template <class T>
using FindShift = FindLeadingBit<T, true>;
template <class T>
using ExtendClamp = SignOrZeroExtend<T, false>;
template <class T>
using ExtendWrap = SignOrZeroExtend<T, true>;

}  // namespace

Handler add(Type type, bool saturate) {
  if (saturate) return type == Type::s32 ? elementwise<AddSaturate<int32_t>>() : nullptr;
  return signed_or_unsigned<Add>(type);
}

Handler subtract(Type type, bool saturate) {
  if (saturate) return type == Type::s32 ? elementwise<SubtractSaturate<int32_t>>() : nullptr;
  return signed_or_unsigned<Subtract>(type);
}

Handler multiply(Type type, Half half) {
  switch (half) {
    case Half::lo: return signed_or_unsigned<MultiplyLo>(type);
    case Half::hi: return signed_or_unsigned<MultiplyHi>(type);
    case Half::wide: return narrow_signed_or_unsigned<MultiplyWide>(type);
  }
  return nullptr;
}

Handler multiply_add(Type type, Half half, bool saturate) {
  if (saturate) return half == Half::hi && type == Type::s32 ? scalar_elementwise<MultiplyAddHiSaturate>() : nullptr;
  switch (half) {
    case Half::lo: return signed_or_unsigned<MultiplyAddLo>(type);
    case Half::hi: return signed_or_unsigned<MultiplyAddHi>(type);
    case Half::wide: return narrow_signed_or_unsigned<MultiplyAddWide>(type);
  }
  return nullptr;
}

Handler multiply_24(Type type, Half half) {
  if (half == Half::lo && type == Type::u32) return elementwise<Multiply24Lo<uint32_t>>();
  if (half == Half::lo && type == Type::s32) return elementwise<Multiply24Lo<int32_t>>();
  return half == Half::hi ? scalar_of_32<Multiply24Hi>(type) : nullptr;
}

Handler multiply_add_24(Type type, Half half, bool saturate) {
  if (saturate) return half == Half::hi && type == Type::s32 ? scalar_elementwise<MultiplyAdd24HiSaturate>() : nullptr;
  if (half == Half::lo) return scalar_of_32<MultiplyAdd24Lo>(type);
  return half == Half::hi ? scalar_of_32<MultiplyAdd24Hi>(type) : nullptr;
}

Handler sum_of_absolute_difference(Type type) { return scalar_signed_or_unsigned<SumOfAbsoluteDifference>(type); }
Handler divide(Type type) { return scalar_signed_or_unsigned<Divide>(type); }
Handler remainder(Type type) { return scalar_signed_or_unsigned<Remainder>(type); }
Handler absolute(Type type) { return signed_only<Absolute>(type); }
Handler negate(Type type) { return signed_only<Negate>(type); }

Handler minimum(Type type, bool relu) {
  if (relu) return type == Type::s32 ? scalar_elementwise<MinimumRelu<int32_t>>() : nullptr;
  return signed_or_unsigned<Minimum>(type);
}

Handler maximum(Type type, bool relu) {
  if (relu) return type == Type::s32 ? scalar_elementwise<MaximumRelu<int32_t>>() : nullptr;
  return signed_or_unsigned<Maximum>(type);
}

Handler paired_integer(PairedOp op, bool is_signed) {
  switch (op) {
    case PairedOp::add: return is_signed ? elementwise<Paired<Add, int16_t>>() : elementwise<Paired<Add, uint16_t>>();
    case PairedOp::minimum:
      return is_signed ? elementwise<Paired<Minimum, int16_t>>() : elementwise<Paired<Minimum, uint16_t>>();
    case PairedOp::maximum:
      return is_signed ? elementwise<Paired<Maximum, int16_t>>() : elementwise<Paired<Maximum, uint16_t>>();
    case PairedOp::minimum_relu: return is_signed ? scalar_elementwise<Paired<MinimumRelu, int16_t>>() : nullptr;
    case PairedOp::maximum_relu: return is_signed ? scalar_elementwise<Paired<MaximumRelu, int16_t>>() : nullptr;
  }
  return nullptr;
}

Handler dot_product_4(bool is_a_signed, bool is_b_signed) {
  if (is_a_signed)
    return is_b_signed ? elementwise<DotProduct4<int8_t, int8_t>>() : elementwise<DotProduct4<int8_t, uint8_t>>();
  return is_b_signed ? elementwise<DotProduct4<uint8_t, int8_t>>() : elementwise<DotProduct4<uint8_t, uint8_t>>();
}

template <int first_byte>
static Handler dot_product_2_from(bool is_a_signed, bool is_b_signed) {
  if (is_a_signed)
    return is_b_signed ? scalar_elementwise<DotProduct2<int16_t, int8_t, first_byte>>()
                       : scalar_elementwise<DotProduct2<int16_t, uint8_t, first_byte>>();
  return is_b_signed ? scalar_elementwise<DotProduct2<uint16_t, int8_t, first_byte>>()
                     : scalar_elementwise<DotProduct2<uint16_t, uint8_t, first_byte>>();
}

Handler dot_product_2(bool is_a_signed, bool is_b_signed, Half half) {
  return half == Half::lo ? dot_product_2_from<0>(is_a_signed, is_b_signed)
                          : dot_product_2_from<2>(is_a_signed, is_b_signed);
}

Handler absolute_difference_4(bool accumulate) {
  return accumulate ? scalar_elementwise<AbsoluteDifference4Add>() : scalar_elementwise<AbsoluteDifference4>();
}

template <CarryOp op>
static Handler with_carry_of(Type type) {
  switch (type) {
    case Type::u32:
    case Type::s32: return &run_with_carry<uint32_t, op>;
    case Type::u64:
    case Type::s64: return &run_with_carry<uint64_t, op>;
    default: return nullptr;
  }
}

Handler with_carry(CarryOp op, Type type) {
  switch (op) {
    case CarryOp::add: return with_carry_of<CarryOp::add>(type);
    case CarryOp::subtract: return with_carry_of<CarryOp::subtract>(type);
    case CarryOp::multiply_add_lo: return with_carry_of<CarryOp::multiply_add_lo>(type);
    case CarryOp::multiply_add_hi:
      if (type == Type::s32) return &run_signed_high_with_carry<int32_t>;
      if (type == Type::s64) return &run_signed_high_with_carry<int64_t>;
      return with_carry_of<CarryOp::multiply_add_hi>(type);
  }
  return nullptr;
}

Handler bit_and(Type type) { return bits_16_to_64<And>(type); }
Handler bit_or(Type type) { return bits_16_to_64<Or>(type); }
Handler bit_xor(Type type) { return bits_16_to_64<Xor>(type); }
Handler bit_not(Type type) { return bits_16_to_64<Not>(type); }
Handler logical_not(Type type) { return bits_16_to_64<LogicalNot>(type); }
Handler lop3() { return &run_lop3; }
Handler shift_left(Type type) { return bits_16_to_64<ShiftLeft>(type); }

Handler shift_right(Type type) {
  if (Handler handler = bits_16_to_64<ShiftRight>(type)) return handler;
  return signed_or_unsigned<ShiftRight>(type);
}

Handler funnel_shift(bool is_left, bool wrap) {
  if (is_left) return wrap ? elementwise<FunnelLeft<true>>() : elementwise<FunnelLeft<false>>();
  return wrap ? elementwise<FunnelRight<true>>() : elementwise<FunnelRight<false>>();
}

Handler extract_bits(Type type) { return of_32_or_64<ExtractBits>(type); }
Handler insert_bits(Type type) { return bits_32_or_64<InsertBits>(type); }
Handler find_leading_bit(Type type, bool shift_amount) {
  if (shift_amount) return of_32_or_64<FindShift>(type);
  return of_32_or_64<FindPosition>(type);
}
Handler find_nth_bit() { return scalar_elementwise<FindNthBit>(); }
Handler reverse_bits(Type type) { return bits_32_or_64<ReverseBits>(type); }
Handler count_leading_zeros(Type type) { return bits_32_or_64<CountLeadingZeros>(type); }
Handler population_count(Type type) { return bits_32_or_64<PopulationCount>(type); }
Handler sign_or_zero_extend(Type type, bool wrap) {
  return wrap ? scalar_of_32<ExtendWrap>(type) : scalar_of_32<ExtendClamp>(type);
}
Handler bit_mask(bool wrap) {
  return wrap ? scalar_elementwise<BitMask<true>>() : scalar_elementwise<BitMask<false>>();
}

Handler permute(PermuteMode mode) {
  switch (mode) {
    case PermuteMode::index: return elementwise<Permute<PermuteMode::index>>();
    case PermuteMode::f4e: return scalar_elementwise<Permute<PermuteMode::f4e>>();
    case PermuteMode::b4e: return scalar_elementwise<Permute<PermuteMode::b4e>>();
    case PermuteMode::rc8: return scalar_elementwise<Permute<PermuteMode::rc8>>();
    case PermuteMode::ecl: return scalar_elementwise<Permute<PermuteMode::ecl>>();
    case PermuteMode::ecr: return scalar_elementwise<Permute<PermuteMode::ecr>>();
    case PermuteMode::rc16: return scalar_elementwise<Permute<PermuteMode::rc16>>();
  }
  return nullptr;
}

}  // namespace fargpu::softgpu::ops
