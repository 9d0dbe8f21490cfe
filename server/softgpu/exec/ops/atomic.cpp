#include "exec/ops/atomic.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "exec/float_format.h"
#include "exec/warp.h"

namespace fargpu::softgpu::ops {
namespace {

using ptx::Type;
using Wide = unsigned __int128;

template <class T>
struct BitsOf {
  using type = std::conditional_t<
      sizeof(T) == 2, uint16_t,
      std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 8, uint64_t, Wide>>>;
};

[[gnu::target("cx16")]] bool compare_exchange_wide(Wide* at, Wide& expected, Wide desired) {
  Wide found = __sync_val_compare_and_swap(at, expected, desired);
  bool is_done = found == expected;
  expected = found;
  return is_done;
}

/// Replaces the value by next(value), and gives the one before.
template <class T, class Next>
T update(std::byte* memory, Next next) {
  using Bits = typename BitsOf<T>::type;
  auto* at = reinterpret_cast<Bits*>(memory);
  if constexpr (sizeof(T) == 16) {
    Wide expected = 0;  // a wrong guess only costs one more round
    while (!compare_exchange_wide(at, expected, next(expected))) {}
    return expected;
  } else {
    Bits expected = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (true) {
      T old = std::bit_cast<T>(expected);
      Bits desired = std::bit_cast<Bits>(static_cast<T>(next(old)));
      if (__atomic_compare_exchange_n(at, &expected, desired, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return old;
    }
  }
}

template <class T>
struct Add {
  static T apply(std::byte* memory, T value) {
    if constexpr (std::is_integral_v<T>) {
      return __atomic_fetch_add(reinterpret_cast<T*>(memory), value, __ATOMIC_SEQ_CST);
    } else {
      return update<T>(memory, [&](T old) -> T {
        if constexpr (std::is_floating_point_v<T>) return old + value;
        else return round_to<T>(to_double(old) + to_double(value));
      });
    }
  }
};

/// Two 16-bit numbers in one register. Each half is added on its own; that both are updated at
/// once is more than required.
template <class Short>
struct AddPair {
  static uint32_t apply(std::byte* memory, uint32_t value) {
    return update<uint32_t>(memory, [&](uint32_t old) {
      auto half = [&](int shift) {
        Short a{static_cast<uint16_t>(old >> shift)}, b{static_cast<uint16_t>(value >> shift)};
        return static_cast<uint32_t>(round_to<Short>(to_double(a) + to_double(b)).bits) << shift;
      };
      return half(0) | half(16);
    });
  }
};

template <class T, bool is_max>
T extreme(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return (a < b) != is_max ? a : b;
  } else {
    double x = to_double(a), y = to_double(b);
    if (x != x) return b;
    if (y != y) return a;
    return (x < y || (x == y && std::signbit(x))) != is_max ? a : b;
  }
}

template <class T>
struct Minimum {
  static T apply(std::byte* memory, T value) {
    return update<T>(memory, [&](T old) { return extreme<T, false>(old, value); });
  }
};
template <class T>
struct Maximum {
  static T apply(std::byte* memory, T value) {
    return update<T>(memory, [&](T old) { return extreme<T, true>(old, value); });
  }
};
template <class Short, bool is_max>
struct ExtremePair {
  static uint32_t apply(std::byte* memory, uint32_t value) {
    return update<uint32_t>(memory, [&](uint32_t old) {
      auto half = [&](int shift) {
        Short a{static_cast<uint16_t>(old >> shift)}, b{static_cast<uint16_t>(value >> shift)};
        return static_cast<uint32_t>(extreme<Short, is_max>(a, b).bits) << shift;
      };
      return half(0) | half(16);
    });
  }
};

struct Increment {
  static uint32_t apply(std::byte* memory, uint32_t limit) {
    return update<uint32_t>(memory, [&](uint32_t old) { return old >= limit ? 0 : old + 1; });
  }
};
struct Decrement {
  static uint32_t apply(std::byte* memory, uint32_t limit) {
    return update<uint32_t>(memory, [&](uint32_t old) { return old == 0 || old > limit ? limit : old - 1; });
  }
};
template <class T>
struct And {
  static T apply(std::byte* memory, T value) {
    return __atomic_fetch_and(reinterpret_cast<T*>(memory), value, __ATOMIC_SEQ_CST);
  }
};
template <class T>
struct Or {
  static T apply(std::byte* memory, T value) {
    return __atomic_fetch_or(reinterpret_cast<T*>(memory), value, __ATOMIC_SEQ_CST);
  }
};
template <class T>
struct Xor {
  static T apply(std::byte* memory, T value) {
    return __atomic_fetch_xor(reinterpret_cast<T*>(memory), value, __ATOMIC_SEQ_CST);
  }
};
template <class T>
struct Exchange {
  static T apply(std::byte* memory, T value) {
    if constexpr (sizeof(T) == 16) return update<T>(memory, [&](T) { return value; });
    else return __atomic_exchange_n(reinterpret_cast<T*>(memory), value, __ATOMIC_SEQ_CST);
  }
};

template <class T>
T compare_exchange(std::byte* memory, T compare, T value) {
  if constexpr (sizeof(T) == 16) {
    compare_exchange_wide(reinterpret_cast<Wide*>(memory), compare, value);
    return compare;
  } else {
    __atomic_compare_exchange_n(reinterpret_cast<T*>(memory), &compare, value, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return compare;
  }
}

template <class Op, class T, int count>
const Instruction* run_atomic(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  ResolvedAccess access;
  if (!access.resolve(warp, instruction, lanes, instruction.operands[count], sizeof(T) * count, Access::read_write))
    return nullptr;
  for (int i = 0; i < count; ++i) {
    T* result = warp.lanes<T>(instruction.operands[i]);
    const T* value = warp.lanes<T>(instruction.operands[count + 1 + i]);
    for_each_lane(lanes, [&](int lane) { result[lane] = Op::apply(access.of(lane) + i * sizeof(T), value[lane]); });
  }
  access.commit(warp);
  if (instruction.flags & strong_access) warp.note_spin();
  return &instruction + 1;
}

template <class T>
const Instruction* run_compare_exchange(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  ResolvedAccess access;
  if (!access.resolve(warp, instruction, lanes, instruction.operands[1], sizeof(T), Access::read_write)) return nullptr;
  T* result = warp.lanes<T>(instruction.operands[0]);
  const T* compare = warp.lanes<T>(instruction.operands[2]);
  const T* value = warp.lanes<T>(instruction.operands[3]);
  for_each_lane(lanes,
                [&](int lane) { result[lane] = compare_exchange<T>(access.of(lane), compare[lane], value[lane]); });
  access.commit(warp);
  warp.note_spin();
  return &instruction + 1;
}

// ---- choosing ------------------------------------------------------------------------------------------------------

template <class Op, class T>
Handler operation(const AtomicForm& form) {
  if constexpr (sizeof(T) <= 4) {
    if (form.count == 2) return &run_atomic<Op, T, 2>;
    if (form.count == 4) return &run_atomic<Op, T, 4>;
  }
  return form.count == 1 ? &run_atomic<Op, T, 1> : nullptr;
}

template <class T>
Handler compare_exchange_of(const AtomicForm& form) {
  return form.count == 1 ? &run_compare_exchange<T> : nullptr;
}

Handler add(const AtomicForm& form) {
  switch (form.type) {
    case Type::u32:
    case Type::s32: return operation<Add<uint32_t>, uint32_t>(form);
    case Type::u64:
    case Type::s64: return operation<Add<uint64_t>, uint64_t>(form);
    case Type::f32: return operation<Add<float>, float>(form);
    case Type::f64: return operation<Add<double>, double>(form);
    case Type::f16: return operation<Add<Half>, Half>(form);
    case Type::bf16: return operation<Add<Bfloat>, Bfloat>(form);
    case Type::f16x2: return operation<AddPair<Half>, uint32_t>(form);
    case Type::bf16x2: return operation<AddPair<Bfloat>, uint32_t>(form);
    default: return nullptr;
  }
}

template <template <class> class Op, bool is_max>
Handler minimum_or_maximum(const AtomicForm& form) {
  switch (form.type) {
    case Type::u32: return operation<Op<uint32_t>, uint32_t>(form);
    case Type::s32: return operation<Op<int32_t>, int32_t>(form);
    case Type::u64: return operation<Op<uint64_t>, uint64_t>(form);
    case Type::s64: return operation<Op<int64_t>, int64_t>(form);
    case Type::f16: return operation<Op<Half>, Half>(form);
    case Type::bf16: return operation<Op<Bfloat>, Bfloat>(form);
    case Type::f16x2: return operation<ExtremePair<Half, is_max>, uint32_t>(form);
    case Type::bf16x2: return operation<ExtremePair<Bfloat, is_max>, uint32_t>(form);
    default: return nullptr;
  }
}

template <template <class> class Op>
Handler bits_32_or_64(const AtomicForm& form) {
  if (form.type == Type::b32) return operation<Op<uint32_t>, uint32_t>(form);
  return form.type == Type::b64 ? operation<Op<uint64_t>, uint64_t>(form) : nullptr;
}

Handler exchange(const AtomicForm& form) {
  switch (form.type) {
    case Type::b32:
    case Type::u32:
    case Type::s32:
    case Type::f32: return operation<Exchange<uint32_t>, uint32_t>(form);
    case Type::b64:
    case Type::u64:
    case Type::s64: return operation<Exchange<uint64_t>, uint64_t>(form);
    case Type::b128: return operation<Exchange<Wide>, Wide>(form);
    default: return nullptr;
  }
}

Handler compare_exchange(const AtomicForm& form) {
  switch (form.type) {
    case Type::b16: return compare_exchange_of<uint16_t>(form);
    case Type::b32:
    case Type::u32:
    case Type::s32: return compare_exchange_of<uint32_t>(form);
    case Type::b64:
    case Type::u64:
    case Type::s64: return compare_exchange_of<uint64_t>(form);
    case Type::b128: return compare_exchange_of<Wide>(form);
    default: return nullptr;
  }
}

}  // namespace

Handler atomic(const AtomicForm& form) {
  switch (form.op) {
    case AtomicOp::add: return add(form);
    case AtomicOp::minimum: return minimum_or_maximum<Minimum, false>(form);
    case AtomicOp::maximum: return minimum_or_maximum<Maximum, true>(form);
    case AtomicOp::increment: return form.type == Type::u32 ? operation<Increment, uint32_t>(form) : nullptr;
    case AtomicOp::decrement: return form.type == Type::u32 ? operation<Decrement, uint32_t>(form) : nullptr;
    case AtomicOp::bit_and: return bits_32_or_64<And>(form);
    case AtomicOp::bit_or: return bits_32_or_64<Or>(form);
    case AtomicOp::bit_xor: return bits_32_or_64<Xor>(form);
    case AtomicOp::exchange: return exchange(form);
    case AtomicOp::compare_exchange: return compare_exchange(form);
  }
  return nullptr;
}

}  // namespace fargpu::softgpu::ops
