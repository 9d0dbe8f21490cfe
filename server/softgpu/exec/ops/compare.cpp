#include "exec/ops/compare.h"

#include <bit>
#include <cstdint>
#include <type_traits>

#include "exec/float_format.h"
#include "exec/ops/elementwise.h"

namespace fargpu::softgpu::ops {
namespace {

template <Comparison comparison, class T>
bool holds(T a, T b) {
  bool is_unordered = a != a || b != b;
  switch (comparison) {
    case Comparison::eq: return a == b;
    case Comparison::ne: return !is_unordered && a != b;
    case Comparison::lt: return a < b;
    case Comparison::le: return a <= b;
    case Comparison::gt: return a > b;
    case Comparison::ge: return a >= b;
    case Comparison::equ: return is_unordered || a == b;
    case Comparison::neu: return a != b;
    case Comparison::ltu: return !(a >= b);
    case Comparison::leu: return !(a > b);
    case Comparison::gtu: return !(a <= b);
    case Comparison::geu: return !(a < b);
    case Comparison::num: return !is_unordered;
    case Comparison::nan: return is_unordered;
  }
  return false;
}

template <Comparison comparison, class T>
struct Compare {
  static bool apply(T a, T b) { return holds<comparison>(a, b); }
};

template <Comparison comparison>
struct CompareFlush {
  static float flushed(float value) {
    uint32_t bits = std::bit_cast<uint32_t>(value);
    return (bits & 0x7f800000) == 0 ? 0.0f : value;
  }
  static bool apply(float a, float b) { return holds<comparison>(flushed(a), flushed(b)); }
};

template <Comparison comparison, class T>
struct CompareShort {
  static bool apply(T a, T b) { return holds<comparison>(to_double(a), to_double(b)); }
};

template <Comparison comparison, class T>
const Instruction* run_compare_pair(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const uint32_t* a = warp.lanes<uint32_t>(instruction.operands[2]);
  const uint32_t* b = warp.lanes<uint32_t>(instruction.operands[3]);
  LaneMask low = 0, high = 0;
  auto half = [](uint32_t pair, int shift) { return T{static_cast<uint16_t>(pair >> shift)}; };
  for_each_lane(lanes, [&](int lane) {
    using Op = CompareShort<comparison, T>;
    low |= LaneMask{Op::apply(half(a[lane], 0), half(b[lane], 0))} << lane;
    high |= LaneMask{Op::apply(half(a[lane], 16), half(b[lane], 16))} << lane;
  });
  warp.set_predicate(instruction.operands[0], lanes, low);
  warp.set_predicate(instruction.operands[1], lanes, high);
  return &instruction + 1;
}

template <class T>
struct Select {
  static T apply(T a, T b, bool choose_a) { return choose_a ? a : b; }
};

template <class T, class Sign>
struct SelectBySign {
  // For NaN the comparison is false and b is taken.
  static T apply(T a, T b, Sign c) { return c >= 0 ? a : b; }
};
template <class T>
struct SelectBySignFlush {
  static T apply(T a, T b, float c) { return CompareFlush<Comparison::ge>::flushed(c) >= 0 ? a : b; }
};

template <PredicateOp op>
const Instruction* run_predicate_logic(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  LaneMask a = warp.predicate(instruction.operands[1]);
  LaneMask value;
  if constexpr (op == PredicateOp::bit_not) value = ~a;
  else if constexpr (op == PredicateOp::copy) value = a;
  else if constexpr (op == PredicateOp::bit_and) value = a & warp.predicate(instruction.operands[2]);
  else if constexpr (op == PredicateOp::bit_or) value = a | warp.predicate(instruction.operands[2]);
  else value = a ^ warp.predicate(instruction.operands[2]);
  warp.set_predicate(instruction.operands[0], lanes, value);
  return &instruction + 1;
}

template <class T, T truth>
struct WriteTruth {
  static T apply(bool is_true) { return is_true ? truth : T{0}; }
};

template <class T>
Handler compare_integer(Comparison comparison) {
  switch (comparison) {
    case Comparison::eq: return elementwise<Compare<Comparison::eq, std::make_unsigned_t<T>>>();
    case Comparison::ne: return elementwise<Compare<Comparison::ne, std::make_unsigned_t<T>>>();
    case Comparison::lt: return elementwise<Compare<Comparison::lt, T>>();
    case Comparison::le: return elementwise<Compare<Comparison::le, T>>();
    case Comparison::gt: return elementwise<Compare<Comparison::gt, T>>();
    case Comparison::ge: return elementwise<Compare<Comparison::ge, T>>();
    default: return nullptr;
  }
}

/// Calls make<comparison>() for the comparison at hand.
template <class Make>
Handler for_comparison(Comparison comparison, Make make) {
  switch (comparison) {
    case Comparison::eq: return make.template operator()<Comparison::eq>();
    case Comparison::ne: return make.template operator()<Comparison::ne>();
    case Comparison::lt: return make.template operator()<Comparison::lt>();
    case Comparison::le: return make.template operator()<Comparison::le>();
    case Comparison::gt: return make.template operator()<Comparison::gt>();
    case Comparison::ge: return make.template operator()<Comparison::ge>();
    case Comparison::equ: return make.template operator()<Comparison::equ>();
    case Comparison::neu: return make.template operator()<Comparison::neu>();
    case Comparison::ltu: return make.template operator()<Comparison::ltu>();
    case Comparison::leu: return make.template operator()<Comparison::leu>();
    case Comparison::gtu: return make.template operator()<Comparison::gtu>();
    case Comparison::geu: return make.template operator()<Comparison::geu>();
    case Comparison::num: return make.template operator()<Comparison::num>();
    case Comparison::nan: return make.template operator()<Comparison::nan>();
  }
  return nullptr;
}

template <class T>
Handler select_by_sign_of(Type sign_type, bool flush) {
  if (sign_type == Type::s32) return flush ? nullptr : elementwise<SelectBySign<T, int32_t>>();
  if (sign_type != Type::f32) return nullptr;
  return flush ? elementwise<SelectBySignFlush<T>>() : elementwise<SelectBySign<T, float>>();
}

}  // namespace

Handler compare(Comparison comparison, Type type, bool flush) {
  if (flush) {
    if (type != Type::f32) return nullptr;
    return for_comparison(comparison, []<Comparison c>() { return elementwise<CompareFlush<c>>(); });
  }
  switch (type) {
    case Type::b16:
    case Type::u16: return compare_integer<uint16_t>(comparison);
    case Type::b32:
    case Type::u32: return compare_integer<uint32_t>(comparison);
    case Type::b64:
    case Type::u64: return compare_integer<uint64_t>(comparison);
    case Type::s16: return compare_integer<int16_t>(comparison);
    case Type::s32: return compare_integer<int32_t>(comparison);
    case Type::s64: return compare_integer<int64_t>(comparison);
    case Type::f32: return for_comparison(comparison, []<Comparison c>() { return elementwise<Compare<c, float>>(); });
    case Type::f64: return for_comparison(comparison, []<Comparison c>() { return elementwise<Compare<c, double>>(); });
    case Type::f16:
      return for_comparison(comparison, []<Comparison c>() { return scalar_elementwise<CompareShort<c, Half>>(); });
    case Type::bf16:
      return for_comparison(comparison, []<Comparison c>() { return scalar_elementwise<CompareShort<c, Bfloat>>(); });
    default: return nullptr;
  }
}

Handler compare_pair(Comparison comparison, Type type) {
  if (type == Type::f16x2)
    return for_comparison(comparison, []<Comparison c>() -> Handler { return &run_compare_pair<c, Half>; });
  if (type == Type::bf16x2)
    return for_comparison(comparison, []<Comparison c>() -> Handler { return &run_compare_pair<c, Bfloat>; });
  return nullptr;
}

Handler select(uint32_t bytes) {
  switch (bytes) {
    case 1: return elementwise<Select<uint8_t>>();
    case 2: return elementwise<Select<uint16_t>>();
    case 4: return elementwise<Select<uint32_t>>();
    case 8: return elementwise<Select<uint64_t>>();
    default: return nullptr;
  }
}

Handler select_by_sign(uint32_t bytes, Type sign_type, bool flush) {
  switch (bytes) {
    case 2: return select_by_sign_of<uint16_t>(sign_type, flush);
    case 4: return select_by_sign_of<uint32_t>(sign_type, flush);
    case 8: return select_by_sign_of<uint64_t>(sign_type, flush);
    default: return nullptr;
  }
}

Handler predicate_logic(PredicateOp op) {
  switch (op) {
    case PredicateOp::bit_and: return &run_predicate_logic<PredicateOp::bit_and>;
    case PredicateOp::bit_or: return &run_predicate_logic<PredicateOp::bit_or>;
    case PredicateOp::bit_xor: return &run_predicate_logic<PredicateOp::bit_xor>;
    case PredicateOp::bit_not: return &run_predicate_logic<PredicateOp::bit_not>;
    case PredicateOp::copy: return &run_predicate_logic<PredicateOp::copy>;
  }
  return nullptr;
}

Handler write_truth(Type result_type) {
  switch (result_type) {
    case Type::u16:
    case Type::s16: return elementwise<WriteTruth<uint16_t, 0xffff>>();
    case Type::u32:
    case Type::s32: return elementwise<WriteTruth<uint32_t, 0xffffffff>>();
    case Type::f32: return elementwise<WriteTruth<uint32_t, 0x3f800000>>();
    case Type::f16: return elementwise<WriteTruth<uint16_t, 0x3c00>>();
    case Type::bf16: return elementwise<WriteTruth<uint16_t, 0x3f80>>();
    default: return nullptr;
  }
}

}  // namespace fargpu::softgpu::ops
