#pragma once

#include <immintrin.h>

#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "exec/instruction.h"
#include "exec/warp.h"

// Handlers for instructions that compute each lane's result from the same lane's operands. An
// operation is a type with a static function `apply`; its parameters are the sources in order, its
// result the destination. bool stands for a predicate.
//
// Each handler is compiled twice, for any x86-64 and for AVX2 with FMA, and chosen once when a
// program is built. Inputs and results pass through memory, which the compiler turns into vector
// loops.

namespace fargpu::softgpu::ops {

enum class Rounding : uint8_t { nearest_even, toward_zero, down, up };

/// True if the second form of each handler may be used on this machine.
bool has_wide_vectors();

template <class T>
struct Source {
  const T* values;
  Source(Warp& warp, OperandRef operand) : values(warp.lanes<T>(operand)) {}
  T operator[](int lane) const { return values[lane]; }
};

/// The low eight bits of a mask as eight flags of one byte each.
inline void spread_flags(LaneMask mask, uint8_t* flags) {
  uint64_t bits = ((mask & 0xff) * 0x0101010101010101u) & 0x8040201008040201u;
  uint64_t eight = ((bits + 0x7f7f7f7f7f7f7f7fu) >> 7) & 0x0101010101010101u;
  std::memcpy(flags, &eight, sizeof eight);
}

template <>
struct Source<bool> {
  alignas(32) uint8_t flags[warp_size];  // loops over bytes vectorize, over bits they do not
  Source(Warp& warp, OperandRef operand) {
    LaneMask mask = warp.predicate(operand);
    for (int i = 0; i < warp_size; i += 8) spread_flags(mask >> i, flags + i);
  }
  bool operator[](int lane) const { return flags[lane] != 0; }
};

/// Eight flags of one byte each, 0 or 1, as the low eight bits.
inline LaneMask pack_flags(const uint8_t* flags) {
  uint64_t eight;
  std::memcpy(&eight, flags, sizeof eight);
  return static_cast<LaneMask>((eight * 0x0102040810204080u) >> 56);
}

inline LaneMask pack_all_flags(const uint8_t* flags) {
  return pack_flags(flags) | pack_flags(flags + 8) << 8 | pack_flags(flags + 16) << 16 |
         pack_flags(flags + 24) << 24;
}

/// Sets the rounding of the host's floating-point unit for its lifetime. The barriers keep the
/// compiler from moving arithmetic across; operands are in memory before and results after.
template <Rounding rounding>
class RoundingScope {
 public:
  RoundingScope() : saved_(_mm_getcsr()) {
    constexpr unsigned modes[] = {_MM_ROUND_NEAREST, _MM_ROUND_TOWARD_ZERO, _MM_ROUND_DOWN,
                                  _MM_ROUND_UP};
    _mm_setcsr((saved_ & ~static_cast<unsigned>(_MM_ROUND_MASK)) |
               modes[static_cast<int>(rounding)]);
    asm volatile("" ::: "memory");
  }
  ~RoundingScope() {
    asm volatile("" ::: "memory");
    _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
};
template <>
class RoundingScope<Rounding::nearest_even> {
 public:
  RoundingScope() {}
};

template <class Function>
struct Signature;
template <class D, class... S>
struct Signature<D (*)(S...)> {
  using Result = D;
  using Sources = std::tuple<S...>;
};

template <class Op, Rounding rounding, class D, class... S, size_t... I>
[[gnu::always_inline]] inline const Instruction* run_elementwise(Warp& warp,
                                                                 const Instruction& instruction,
                                                                 LaneMask lanes, std::tuple<S...>*,
                                                                 D*, std::index_sequence<I...>) {
  std::tuple<Source<S>...> sources{Source<S>(warp, instruction.operands[I + 1])...};
  [[maybe_unused]] RoundingScope<rounding> scope;
  if constexpr (std::is_same_v<D, bool>) {
    alignas(32) uint8_t flags[warp_size];
    if (warp.fills(lanes)) {
#pragma GCC ivdep
      for (int lane = 0; lane < warp_size; ++lane)
        flags[lane] = Op::apply(std::get<I>(sources)[lane]...);
    } else {
      for (int lane = 0; lane < warp_size; ++lane)
        flags[lane] = has_lane(lanes, lane) ? Op::apply(std::get<I>(sources)[lane]...) : false;
    }
    warp.set_predicate(instruction.operands[0], lanes, pack_all_flags(flags));
  } else {
    D* result = warp.lanes<D>(instruction.operands[0]);
    if (warp.fills(lanes)) {
#pragma GCC ivdep
      for (int lane = 0; lane < warp_size; ++lane)
        result[lane] = Op::apply(std::get<I>(sources)[lane]...);
    } else {
      for_each_lane(
          lanes, [&](int lane) __attribute__((always_inline)) {
            result[lane] = Op::apply(std::get<I>(sources)[lane]...);
          });
    }
  }
  return &instruction + 1;
}

template <class Op, Rounding rounding>
const Instruction* elementwise_any(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  using S = typename Signature<decltype(&Op::apply)>::Sources;
  using D = typename Signature<decltype(&Op::apply)>::Result;
  return run_elementwise<Op, rounding>(warp, instruction, lanes, static_cast<S*>(nullptr),
                                       static_cast<D*>(nullptr),
                                       std::make_index_sequence<std::tuple_size_v<S>>());
}

template <class Op, Rounding rounding>
[[gnu::target("avx2,fma,bmi,bmi2,lzcnt,popcnt")]] const Instruction* elementwise_wide(
    Warp& warp, const Instruction& instruction, LaneMask lanes) {
  using S = typename Signature<decltype(&Op::apply)>::Sources;
  using D = typename Signature<decltype(&Op::apply)>::Result;
  return run_elementwise<Op, rounding>(warp, instruction, lanes, static_cast<S*>(nullptr),
                                       static_cast<D*>(nullptr),
                                       std::make_index_sequence<std::tuple_size_v<S>>());
}

/// The handler of an operation: operands[0] is the destination, the sources follow.
template <class Op, Rounding rounding = Rounding::nearest_even>
Handler elementwise() {
  return has_wide_vectors() ? &elementwise_wide<Op, rounding> : &elementwise_any<Op, rounding>;
}

}  // namespace fargpu::softgpu::ops
