#include "exec/ops/memory.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "exec/launch.h"

namespace fargpu::softgpu::ops {
namespace {

using Wide = unsigned __int128;

// Kernels may race with one another and with the host on the memory they access, as on a GPU. The
// races are theirs, not this library's.
#if defined(__SANITIZE_THREAD__)
#define FARGPU_GUEST_MEMORY [[gnu::noinline, gnu::no_sanitize("thread")]]
#else
#define FARGPU_GUEST_MEMORY [[gnu::always_inline]] inline
#endif

template <class T>
T load_whole(const std::byte* from) {
  if constexpr (sizeof(T) <= 8) return __atomic_load_n(reinterpret_cast<const T*>(from), __ATOMIC_ACQUIRE);
  else return *reinterpret_cast<const T*>(from);
}

template <class T>
void store_whole(std::byte* to, T value) {
  if constexpr (sizeof(T) <= 8) __atomic_store_n(reinterpret_cast<T*>(to), value, __ATOMIC_RELEASE);
  else *reinterpret_cast<T*>(to) = value;
}

template <class Element, class Register, int count>
FARGPU_GUEST_MEMORY void load_elements(Warp& warp, const Instruction& instruction, LaneMask lanes,
                                       const ResolvedAccess& access) {
  using Pattern = ResolvedAccess::Pattern;
  Register* results[count];
  for (int i = 0; i < count; ++i) results[i] = warp.lanes<Register>(instruction.operands[i]);
  if (instruction.flags & strong_access) {
    for_each_lane(lanes, [&](int lane) {
      for (int i = 0; i < count; ++i)
        results[i][lane] = static_cast<Register>(load_whole<Element>(access.of(lane) + i * sizeof(Element)));
    });
  } else if (access.pattern() == Pattern::scattered) {
    for_each_lane(lanes, [&](int lane) {
      auto* from = reinterpret_cast<const Element*>(access.of(lane));
      Element elements[count];
      for (int i = 0; i < count; ++i) elements[i] = from[i];
      for (int i = 0; i < count; ++i) results[i][lane] = static_cast<Register>(elements[i]);
    });
  } else {
    auto* from = reinterpret_cast<const Element*>(access.of(0));
    bool is_uniform = access.pattern() == Pattern::uniform;
    for (int i = 0; i < count; ++i) {
      Register* result = results[i];
      if (is_uniform) {
        std::fill_n(result, warp_size, static_cast<Register>(from[i]));
        continue;
      }
#pragma GCC ivdep
      for (int lane = 0; lane < warp_size; ++lane) result[lane] = static_cast<Register>(from[lane * count + i]);
    }
  }
}

template <class Element, class Register, int count>
FARGPU_GUEST_MEMORY void store_elements(Warp& warp, const Instruction& instruction, LaneMask lanes,
                                        const ResolvedAccess& access) {
  const Register* sources[count];
  for (int i = 0; i < count; ++i) sources[i] = warp.lanes<Register>(instruction.operands[i]);
  if (instruction.flags & strong_access) {
    for_each_lane(lanes, [&](int lane) {
      for (int i = 0; i < count; ++i)
        store_whole<Element>(access.of(lane) + i * sizeof(Element), static_cast<Element>(sources[i][lane]));
    });
  } else if (access.pattern() == ResolvedAccess::Pattern::contiguous) {
    auto* to = reinterpret_cast<Element*>(access.of(0));
    for (int i = 0; i < count; ++i) {
      const Register* source = sources[i];
#pragma GCC ivdep
      for (int lane = 0; lane < warp_size; ++lane) to[lane * count + i] = static_cast<Element>(source[lane]);
    }
  } else {
    for_each_lane(lanes, [&](int lane) {
      auto* to = reinterpret_cast<Element*>(access.of(lane));
      for (int i = 0; i < count; ++i) to[i] = static_cast<Element>(sources[i][lane]);
    });
  }
}

template <class Element, class Register, int count>
const Instruction* run_load(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  ResolvedAccess access;
  if (!access.resolve(warp, instruction, lanes, instruction.operands[count], sizeof(Element) * count, Access::read))
    return nullptr;
  load_elements<Element, Register, count>(warp, instruction, lanes, access);
  if (instruction.flags & strong_access) warp.note_spin();
  return &instruction + 1;
}

template <class Element, class Register, int count>
const Instruction* run_store(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  ResolvedAccess access;
  if (!access.resolve(warp, instruction, lanes, instruction.operands[count], sizeof(Element) * count,
                      Access::read_write))
    return nullptr;
  store_elements<Element, Register, count>(warp, instruction, lanes, access);
  access.commit(warp);
  return &instruction + 1;
}

// ---- choosing ------------------------------------------------------------------------------------------------------

template <class Element, class Register, int count>
struct LoadOf {
  static constexpr Handler handler = &run_load<Element, Register, count>;
};
template <class Element, class Register, int count>
struct StoreOf {
  static constexpr Handler handler = &run_store<Element, Register, count>;
};

template <template <class, class, int> class Operation, class Element, class Register>
Handler of_count(const MemoryForm& form) {
  if constexpr (sizeof(Element) <= 8) {
    if (form.count == 2) return Operation<Element, Register, 2>::handler;
  }
  if constexpr (sizeof(Element) <= 4) {
    if (form.count == 4) return Operation<Element, Register, 4>::handler;
  }
  return form.count == 1 ? Operation<Element, Register, 1>::handler : nullptr;
}

template <template <class, class, int> class Operation, class Element>
Handler of_register(const MemoryForm& form) {
  if (form.register_bytes < sizeof(Element)) return nullptr;
  switch (form.register_bytes) {
    case 1:
      if constexpr (sizeof(Element) <= 1) return of_count<Operation, Element, uint8_t>(form);
      return nullptr;
    case 2:
      if constexpr (sizeof(Element) <= 2) return of_count<Operation, Element, uint16_t>(form);
      return nullptr;
    case 4:
      if constexpr (sizeof(Element) <= 4) return of_count<Operation, Element, uint32_t>(form);
      return nullptr;
    case 8:
      if constexpr (sizeof(Element) <= 8) return of_count<Operation, Element, uint64_t>(form);
      return nullptr;
    case 16:
      if constexpr (sizeof(Element) == 16) return of_count<Operation, Element, Wide>(form);
      return nullptr;
    default: return nullptr;
  }
}

template <template <class, class, int> class Operation>
Handler of_element(const MemoryForm& form) {
  switch (form.element_bytes) {
    case 1: return of_register<Operation, uint8_t>(form);
    case 2: return of_register<Operation, uint16_t>(form);
    case 4: return of_register<Operation, uint32_t>(form);
    case 8: return of_register<Operation, uint64_t>(form);
    case 16: return of_register<Operation, Wide>(form);
    default: return nullptr;
  }
}

// ---- addresses -----------------------------------------------------------------------------------------------------

template <class T>
const Instruction* run_local_address(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  T address = static_cast<T>(warp.frame->local_base + static_cast<uint64_t>(instruction.immediate));
  T* result = warp.lanes<T>(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) { result[lane] = address; });
  return &instruction + 1;
}

template <class T>
const Instruction* run_shared_variable_address(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  uint64_t offset = warp.launch->kernel->shared_offsets[instruction.flags];
  T address = static_cast<T>(offset + static_cast<uint64_t>(instruction.immediate));
  T* result = warp.lanes<T>(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) { result[lane] = address; });
  return &instruction + 1;
}

template <bool to_generic>
const Instruction* run_convert_address(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  uint64_t* result = warp.lanes<uint64_t>(instruction.operands[0]);
  const uint64_t* address = warp.lanes<uint64_t>(instruction.operands[1]);
  uint64_t base = static_cast<uint64_t>(instruction.immediate) << window_shift;
  for_each_lane(lanes, [&](int lane) { result[lane] = to_generic ? address[lane] + base : address[lane] - base; });
  return &instruction + 1;
}

const Instruction* run_is_in_window(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const uint64_t* address = warp.lanes<uint64_t>(instruction.operands[1]);
  LaneMask found = 0;
  for_each_lane(lanes, [&](int lane) {
    bool is_inside = address[lane] >> window_shift == static_cast<uint64_t>(instruction.immediate);
    // shared::cta excludes the other blocks of a cluster.
    bool is_other_block = static_cast<Window>(instruction.immediate) == Window::shared && (instruction.flags & 1) &&
                          ((address[lane] >> cluster_rank_shift) & 0xffffff) != 0;
    found |= LaneMask{is_inside && !is_other_block} << lane;
  });
  warp.set_predicate(instruction.operands[0], lanes, found);
  return &instruction + 1;
}

const Instruction* run_nothing(Warp&, const Instruction& instruction, LaneMask) { return &instruction + 1; }

const Instruction* run_fence(Warp&, const Instruction& instruction, LaneMask) {
#if !defined(__SANITIZE_THREAD__)  // which does not support fences; accesses it sees are atomic
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  return &instruction + 1;
}

}  // namespace

Handler load(const MemoryForm& form) {
  bool extends_sign = form.is_signed && form.element_bytes < form.register_bytes;
  if (!extends_sign) return of_element<LoadOf>(form);
  switch (form.element_bytes) {
    case 1: return of_register<LoadOf, int8_t>(form);
    case 2: return of_register<LoadOf, int16_t>(form);
    case 4: return of_register<LoadOf, int32_t>(form);
    default: return nullptr;
  }
}

Handler store(const MemoryForm& form) { return of_element<StoreOf>(form); }

Handler local_address(uint32_t bytes) {
  if (bytes == 4) return &run_local_address<uint32_t>;
  return bytes == 8 ? &run_local_address<uint64_t> : nullptr;
}

Handler shared_variable_address(uint32_t bytes) {
  if (bytes == 4) return &run_shared_variable_address<uint32_t>;
  return bytes == 8 ? &run_shared_variable_address<uint64_t> : nullptr;
}

Handler to_generic() { return &run_convert_address<true>; }
Handler from_generic() { return &run_convert_address<false>; }
Handler is_in_window() { return &run_is_in_window; }
Handler no_operation() { return &run_nothing; }
Handler fence() { return &run_fence; }

}  // namespace fargpu::softgpu::ops
