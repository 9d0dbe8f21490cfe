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
// Each operation has a handler for machines with AVX2 and FMA, a loop over all lanes that the
// compiler turns into vector code, and one for others that takes lane by lane. Which one is chosen
// once, when a program is built.

namespace fargpu::softgpu::ops {

enum class Rounding : uint8_t { nearest_even, toward_zero, down, up };

/// True if handlers may use AVX2, FMA and the bit operations that came with them.
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
  return pack_flags(flags) | pack_flags(flags + 8) << 8 | pack_flags(flags + 16) << 16 | pack_flags(flags + 24) << 24;
}

/// Sets the rounding of the host's floating-point unit for its lifetime. The barriers keep the
/// compiler from moving arithmetic across; operands are in memory before and results after.
template <Rounding rounding>
class RoundingScope {
 public:
  RoundingScope() : saved_(_mm_getcsr()) {
    constexpr unsigned modes[] = {_MM_ROUND_NEAREST, _MM_ROUND_TOWARD_ZERO, _MM_ROUND_DOWN, _MM_ROUND_UP};
    _mm_setcsr((saved_ & ~static_cast<unsigned>(_MM_ROUND_MASK)) | modes[static_cast<int>(rounding)]);
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

/// An operation with its signature taken apart.
template <class Op, Rounding rounding, class Sources = typename Signature<decltype(&Op::apply)>::Sources,
          class Indices = std::make_index_sequence<std::tuple_size_v<Sources>>>
struct Elementwise;

template <class Op, Rounding rounding, class... S, size_t... I>
struct Elementwise<Op, rounding, std::tuple<S...>, std::index_sequence<I...>> {
  using D = typename Signature<decltype(&Op::apply)>::Result;

  static const Instruction* lane_by_lane(Warp& warp, const Instruction& instruction, LaneMask lanes) {
    std::tuple<Source<S>...> sources{Source<S>(warp, instruction.operands[I + 1])...};
    [[maybe_unused]] RoundingScope<rounding> scope;
    if constexpr (std::is_same_v<D, bool>) {
      LaneMask result = 0;
      for_each_lane(lanes, [&](int lane) { result |= LaneMask{Op::apply(std::get<I>(sources)[lane]...)} << lane; });
      warp.set_predicate(instruction.operands[0], lanes, result);
    } else {
      D* result = warp.lanes<D>(instruction.operands[0]);
      for_each_lane(lanes, [&](int lane) { result[lane] = Op::apply(std::get<I>(sources)[lane]...); });
    }
    return &instruction + 1;
  }

  [[gnu::target("avx2,fma,bmi,bmi2,lzcnt,popcnt")]] static const Instruction* vector_loop(
      Warp& warp, const Instruction& instruction, LaneMask lanes) {
    std::tuple<Source<S>...> sources{Source<S>(warp, instruction.operands[I + 1])...};
    [[maybe_unused]] RoundingScope<rounding> scope;
    if constexpr (std::is_same_v<D, bool>) {
      alignas(32) uint8_t flags[warp_size];
      if (warp.fills(lanes)) {
#pragma GCC ivdep
        for (int lane = 0; lane < warp_size; ++lane) flags[lane] = Op::apply(std::get<I>(sources)[lane]...);
      } else {
        for (int lane = 0; lane < warp_size; ++lane)
          flags[lane] = has_lane(lanes, lane) ? Op::apply(std::get<I>(sources)[lane]...) : false;
      }
      warp.set_predicate(instruction.operands[0], lanes, pack_all_flags(flags));
    } else {
      D* result = warp.lanes<D>(instruction.operands[0]);
      if (warp.fills(lanes)) {
#pragma GCC ivdep
        for (int lane = 0; lane < warp_size; ++lane) result[lane] = Op::apply(std::get<I>(sources)[lane]...);
      } else {
        for_each_lane(
            lanes, [&](int lane)
                       __attribute__((always_inline)) { result[lane] = Op::apply(std::get<I>(sources)[lane]...); });
      }
    }
    return &instruction + 1;
  }
};

/// The handler of an operation: operands[0] is the destination, the sources follow.
template <class Op, Rounding rounding = Rounding::nearest_even>
Handler elementwise() {
  using Handlers = Elementwise<Op, rounding>;
  return has_wide_vectors() ? &Handlers::vector_loop : &Handlers::lane_by_lane;
}

/// A handler that works lane by lane everywhere, for operations that are rare, have no vector instructions, or
/// call functions: a vector loop would take long to compile and gain little.
template <class Op, Rounding rounding = Rounding::nearest_even>
Handler scalar_elementwise() {
  return &Elementwise<Op, rounding>::lane_by_lane;
}

}  // namespace fargpu::softgpu::ops
