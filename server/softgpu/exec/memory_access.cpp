#include "exec/memory_access.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <span>

#include "exec/block.h"
#include "exec/launch.h"
#include "exec/ops/elementwise.h"

namespace fargpu::softgpu {
namespace {

constexpr uint64_t window_mask = (uint64_t{1} << window_shift) - 1;

std::string hexadecimal(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(value));
  return text;
}

/// Shared memory from an address of the window to its end, of this block or another of its cluster.
std::span<std::byte> shared_from(Warp& warp, uint64_t address) {
  uint64_t rank_code = address >> cluster_rank_shift;
  uint64_t offset = address & ((uint64_t{1} << cluster_rank_shift) - 1);
  std::span<std::byte> shared = {warp.memory->shared, warp.memory->shared_bytes};
  if (rank_code != 0) shared = warp.block->shared_of_rank(static_cast<uint32_t>(rank_code - 1));
  return offset < shared.size() ? shared.subspan(offset) : std::span<std::byte>();
}

/// Null if the piece is not all within it.
std::byte* find_shared(Warp& warp, uint64_t address, uint32_t bytes) {
  std::span<std::byte> shared = shared_from(warp, address);
  return bytes <= shared.size() ? shared.data() : nullptr;
}

}  // namespace

bool ResolvedAccess::fail(const LaneAccess& what, int lane, const char* space) {
  uint64_t address = address_.lane[lane];
  bool is_misaligned = (address & (what.bytes - 1)) != 0;
  std::string text = (is_misaligned ? "misaligned address " : "illegal address ") + hexadecimal(address) + ", " +
                     (what.access == Access::read ? "read" : "write") + " of " + std::to_string(what.bytes) +
                     " bytes of " + space + " memory";
  what.warp.raise(is_misaligned ? FaultKind::misaligned_address : FaultKind::illegal_address, what.instruction, lane,
                  std::move(text));
  return false;
}

// ---- all 32 lanes at once ------------------------------------------------------------------------------------------

namespace {

/// How the lanes' base addresses lie to one another; what is added to all changes nothing of it.
template <class Base>
[[gnu::always_inline]] inline ResolvedAccess::Pattern find_pattern(const Base* base, uint32_t bytes) {
  int shift = std::countr_zero(bytes);  // pieces have a power of two of bytes
  Base differs = 0, out_of_step = 0;
  for (int lane = 0; lane < warp_size; ++lane) {
    differs |= base[lane] ^ base[0];
    out_of_step |= base[lane] ^ (base[0] + (static_cast<Base>(lane) << shift));
  }
  return out_of_step == 0 ? ResolvedAccess::Pattern::contiguous
         : differs == 0   ? ResolvedAccess::Pattern::uniform
                          : ResolvedAccess::Pattern::scattered;
}

/// The window of a generic address as a space; none for those that are looked at lane by lane.
std::optional<MemorySpace> space_of_window(uint64_t address) {
  switch (static_cast<Window>(address >> window_shift)) {
    case Window::global: return MemorySpace::global;
    case Window::shared: return MemorySpace::shared;
    default: return std::nullopt;
  }
}

}  // namespace

/// Host address of a block of global memory within one page, or of the own block's shared memory;
/// null if there is more to look at.
[[gnu::always_inline]] inline std::byte* ResolvedAccess::find_block(const LaneAccess& what, MemorySpace space,
                                                                    uint64_t first, uint64_t bytes) {
  if (space == MemorySpace::generic) {
    auto found = space_of_window(first);
    if (!found) return nullptr;
    space = *found;
    first &= window_mask;
  }
  MemoryView& memory = *what.warp.memory;
  if (space == MemorySpace::global) {
    TranslationCache& cache = what.access == Access::read ? memory.reads : memory.writes;
    const TranslationCache::Entry* page = cache.find(*memory.page_table, first, what.access);
    if (page == nullptr || !page->covers(first + bytes - 1)) return nullptr;
    return page->host + (first - page->begin);
  }
  if (space == MemorySpace::shared && bytes <= memory.shared_bytes && first <= memory.shared_bytes - bytes)
    return memory.shared + first;
  return nullptr;
}

/// Scattered lanes mostly access one page, or the own block's shared memory. False if there is more
/// to look at.
[[gnu::always_inline]] inline bool ResolvedAccess::resolve_scattered(const LaneAccess& what, MemorySpace space) {
  uint64_t lowest = address_.lane[0], highest = lowest, low_bits = 0;
  for (int lane = 0; lane < warp_size; ++lane) {
    uint64_t address = address_.lane[lane];
    lowest = std::min(lowest, address);
    highest = std::max(highest, address);
    low_bits |= address;
  }
  if ((low_bits & (what.bytes - 1)) != 0 || highest >> window_shift != lowest >> window_shift) return false;
  std::byte* host = find_block(what, space, lowest, highest - lowest + what.bytes);
  if (host == nullptr) return false;
  for (int lane = 0; lane < warp_size; ++lane) host_.lane[lane] = host + (address_.lane[lane] - lowest);
  return true;
}

// ---- lane by lane --------------------------------------------------------------------------------------------------

bool ResolvedAccess::resolve_global(const LaneAccess& what, LaneMask lanes) {
  TranslationCache& cache = what.access == Access::read ? what.warp.memory->reads : what.warp.memory->writes;
  const PageTable& table = *what.warp.memory->page_table;
  const TranslationCache::Entry* page = nullptr;
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    uint64_t address = address_.lane[lane];
    if (page == nullptr || !page->covers(address)) page = cache.find(table, address, what.access);
    if (page == nullptr || (address & (what.bytes - 1)) != 0) return fail(what, lane, "global");
    host_.lane[lane] = page->host + (address - page->begin);
  }
  return true;
}

bool ResolvedAccess::resolve_shared(const LaneAccess& what, LaneMask lanes) {
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    uint64_t address = address_.lane[lane];
    std::byte* host = find_shared(what.warp, address, what.bytes);
    if (host == nullptr || (address & (what.bytes - 1)) != 0) return fail(what, lane, "shared");
    host_.lane[lane] = host;
  }
  return true;
}

bool ResolvedAccess::resolve_local(const LaneAccess& what, LaneMask lanes) {
  std::byte* local = what.warp.local;
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    uint64_t address = address_.lane[lane];
    if ((address & (what.bytes - 1)) != 0 || address + what.bytes > what.warp.local_bytes)
      return fail(what, lane, "local");
    uint32_t offset = static_cast<uint32_t>(address);
    if (what.bytes <= 4) {
      host_.lane[lane] = local + local_position(offset, lane);
      continue;
    }
    staged_ |= LaneMask{1} << lane;
    host_.lane[lane] = staging_[lane];
    if (what.access != Access::read) continue;
    for (uint32_t i = 0; i < what.bytes; i += 4)
      std::memcpy(staging_[lane] + i, local + local_position(offset + i, lane), 4);
  }
  return true;
}

void ResolvedAccess::write_staged(Warp& warp) {
  for_each_lane(staged_, [&](int lane) {
    uint32_t offset = static_cast<uint32_t>(address_.lane[lane] & window_mask);
    for (uint32_t i = 0; i < bytes_; i += 4)
      std::memcpy(warp.local + local_position(offset + i, lane), staging_[lane] + i, 4);
  });
}

bool ResolvedAccess::resolve_parameter(const LaneAccess& what, LaneMask lanes) {
  const MemoryView& memory = *what.warp.memory;
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    uint64_t address = address_.lane[lane];
    if (what.access != Access::read || (address & (what.bytes - 1)) != 0 ||
        address + what.bytes > memory.parameter_bytes)
      return fail(what, lane, "parameter");
    host_.lane[lane] = const_cast<std::byte*>(memory.parameters) + address;
  }
  return true;
}

bool ResolvedAccess::resolve_generic(const LaneAccess& what, LaneMask lanes) {
  uint64_t first = address_.lane[first_lane(lanes)] >> window_shift;
  bool is_one_window = true;
  for_each_lane(lanes, [&](int lane) { is_one_window &= address_.lane[lane] >> window_shift == first; });
  if (!is_one_window) {
    for (LaneMask rest = lanes; rest != 0; rest &= rest - 1)
      if (!resolve_generic(what, LaneMask{1} << first_lane(rest))) return false;
    return true;
  }
  if (static_cast<Window>(first) == Window::global) return resolve_global(what, lanes);
  for_each_lane(lanes, [&](int lane) { address_.lane[lane] &= window_mask; });
  switch (static_cast<Window>(first)) {
    case Window::shared: return resolve_shared(what, lanes);
    case Window::local: return resolve_local(what, lanes);
    case Window::param: return resolve_parameter(what, lanes);
    default: break;
  }
  address_.lane[first_lane(lanes)] |= first << window_shift;
  return fail(what, first_lane(lanes), "generic");
}

bool ResolvedAccess::resolve_in(MemorySpace space, const LaneAccess& what, LaneMask lanes) {
  switch (space) {
    case MemorySpace::generic: return resolve_generic(what, lanes);
    case MemorySpace::global: return resolve_global(what, lanes);
    case MemorySpace::shared: return resolve_shared(what, lanes);
    case MemorySpace::local:
    case MemorySpace::frame: return resolve_local(what, lanes);
    case MemorySpace::parameter: return resolve_parameter(what, lanes);
  }
  return false;
}

// ---- choosing ------------------------------------------------------------------------------------------------------

/// All lanes access the same place of the parameters, or of their local memory.
bool ResolvedAccess::resolve_fixed(const LaneAccess& what, LaneMask lanes) {
  bool is_parameter = space_of(what.instruction) == MemorySpace::parameter;
  const MemoryView& memory = *what.warp.memory;
  uint64_t offset = static_cast<uint64_t>(what.instruction.immediate);
  if (!is_parameter) offset += what.warp.frame->local_base;
  uint64_t end = is_parameter ? memory.parameter_bytes : what.warp.local_bytes;
  bool is_simple = lanes == all_lanes && (offset & (what.bytes - 1)) == 0 && offset + what.bytes <= end;
  if (is_simple && is_parameter && what.access == Access::read) {
    base_ = const_cast<std::byte*>(memory.parameters) + offset;
    pattern_ = Pattern::uniform;
    return true;
  }
  if (is_simple && !is_parameter && what.bytes == 4) {
    base_ = what.warp.local + local_position(static_cast<uint32_t>(offset), 0);
    pattern_ = Pattern::contiguous;
    return true;
  }
  for (int lane = 0; lane < warp_size; ++lane) address_.lane[lane] = offset;
  return resolve_in(space_of(what.instruction), what, lanes);
}

/// `base` with `offset` are the addresses, as wide as the registers they come from.
template <class Base>
[[gnu::always_inline]] inline bool ResolvedAccess::resolve_lanes(const LaneAccess& what, LaneMask lanes,
                                                                 const Base* base) {
  MemorySpace space = space_of(what.instruction);
  auto offset = static_cast<Base>(what.instruction.immediate);
  if (lanes == all_lanes) {
    Pattern pattern = find_pattern(base, what.bytes);
    Base first = base[0] + offset;
    if (pattern != Pattern::scattered && (first & (what.bytes - 1)) == 0) {
      uint32_t bytes = pattern == Pattern::uniform ? what.bytes : warp_size * what.bytes;
      base_ = find_block(what, space, first, bytes);
      if (base_ != nullptr) {
        pattern_ = pattern;
        return true;
      }
    }
  }
  for (int lane = 0; lane < warp_size; ++lane) address_.lane[lane] = static_cast<Base>(base[lane] + offset);
  return (lanes == all_lanes && resolve_scattered(what, space)) || resolve_in(space, what, lanes);
}

[[gnu::always_inline]] inline bool ResolvedAccess::resolve_here(const LaneAccess& what, LaneMask lanes,
                                                                OperandRef address) {
  if (address_kind_of(what.instruction) == AddressKind::register_64)
    return resolve_lanes(what, lanes, what.warp.lanes<uint64_t>(address));
  return resolve_lanes(what, lanes, what.warp.lanes<uint32_t>(address));  // which wraps around
}

bool ResolvedAccess::resolve_any(ResolvedAccess& access, const LaneAccess& what, LaneMask lanes, OperandRef address) {
  return access.resolve_here(what, lanes, address);
}

[[gnu::target("avx2")]] bool ResolvedAccess::resolve_wide(ResolvedAccess& access, const LaneAccess& what,
                                                          LaneMask lanes, OperandRef address) {
  return access.resolve_here(what, lanes, address);
}

bool ResolvedAccess::resolve(Warp& warp, const Instruction& instruction, LaneMask lanes, OperandRef address,
                             uint32_t bytes, Access access) {
  bytes_ = bytes;
  LaneAccess what = {warp, instruction, bytes, access};
  if (address_kind_of(instruction) == AddressKind::fixed) return resolve_fixed(what, lanes);
  static const auto resolver = ops::has_wide_vectors() ? &resolve_wide : &resolve_any;
  return resolver(*this, what, lanes, address);
}

namespace {

/// Host address of one byte in generic addressing, and how many bytes from there on are together;
/// null if there is no such access.
std::byte* find_piece(Warp& warp, int lane, uint64_t address, Access access, uint64_t& together) {
  uint64_t offset = address & window_mask;
  switch (static_cast<Window>(address >> window_shift)) {
    case Window::global: {
      MemoryView& memory = *warp.memory;
      TranslationCache& cache = access == Access::read ? memory.reads : memory.writes;
      const TranslationCache::Entry* page = cache.find(*memory.page_table, address, access);
      if (page == nullptr) return nullptr;
      together = page->begin + page->bytes - address;
      return page->host + (address - page->begin);
    }
    case Window::shared: {
      std::span<std::byte> shared = shared_from(warp, offset);
      together = shared.size();
      return shared.empty() ? nullptr : shared.data();
    }
    case Window::local:
      together = 4 - offset % 4;
      if (offset >= warp.local_bytes) return nullptr;
      return warp.local + local_position(static_cast<uint32_t>(offset), lane);
    case Window::param:
      together = 1;
      if (access != Access::read || offset >= warp.memory->parameter_bytes) return nullptr;
      return const_cast<std::byte*>(warp.memory->parameters) + offset;
    default: return nullptr;
  }
}

template <class Move>
bool for_each_piece(Warp& warp, const Instruction& at, int lane, uint64_t address, uint64_t bytes, Access access,
                    Move move) {
  uint64_t done = 0;
  while (done < bytes) {
    uint64_t together = 0;
    std::byte* host = find_piece(warp, lane, address + done, access, together);
    if (host == nullptr) {
      warp.raise(FaultKind::illegal_address, at, lane, "illegal address " + hexadecimal(address + done));
      return false;
    }
    uint64_t piece = std::min(together, bytes - done);
    move(host, done, piece);
    done += piece;
  }
  return true;
}

}  // namespace

std::byte* find_generic(Warp& warp, int lane, uint64_t address, uint64_t bytes, Access access) {
  uint64_t together = 0;
  std::byte* host = find_piece(warp, lane, address, access, together);
  return bytes <= together ? host : nullptr;
}

bool read_generic(Warp& warp, const Instruction& at, int lane, uint64_t address, void* to, uint64_t bytes) {
  return for_each_piece(warp, at, lane, address, bytes, Access::read,
                        [&](std::byte* host, uint64_t done, uint64_t piece) {
                          std::memcpy(static_cast<std::byte*>(to) + done, host, piece);
                        });
}

bool write_generic(Warp& warp, const Instruction& at, int lane, uint64_t address, const void* from, uint64_t bytes) {
  return for_each_piece(warp, at, lane, address, bytes, Access::read_write,
                        [&](std::byte* host, uint64_t done, uint64_t piece) {
                          std::memcpy(host, static_cast<const std::byte*>(from) + done, piece);
                        });
}

}  // namespace fargpu::softgpu
