#include "exec/memory_access.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "exec/block.h"
#include "exec/launch.h"

namespace fargpu::softgpu {
namespace {

constexpr uint64_t window_mask = (uint64_t{1} << window_shift) - 1;

std::string hexadecimal(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(value));
  return text;
}

/// Shared memory at an address of the window, of this block or another of its cluster; null if
/// the piece is not all within it.
std::byte* find_shared(Warp& warp, uint64_t address, uint32_t bytes) {
  uint64_t rank_code = address >> cluster_rank_shift;
  uint64_t offset = address & ((uint64_t{1} << cluster_rank_shift) - 1);
  std::span<std::byte> shared = {warp.memory->shared, warp.memory->shared_bytes};
  if (rank_code != 0) shared = warp.block->shared_of_rank(static_cast<uint32_t>(rank_code - 1));
  if (offset + bytes > shared.size()) return nullptr;
  return shared.data() + offset;
}

}  // namespace

bool ResolvedAccess::fail(const LaneAccess& what, int lane, const char* space) {
  uint64_t address = address_.lane[lane];
  bool is_misaligned = address % what.bytes != 0;
  std::string text = (is_misaligned ? "misaligned address " : "illegal address ") +
                     hexadecimal(address) + ", " +
                     (what.access == Access::read ? "read" : "write") + " of " +
                     std::to_string(what.bytes) + " bytes of " + space + " memory";
  what.warp.raise(is_misaligned ? FaultKind::misaligned_address : FaultKind::illegal_address,
                  what.instruction, lane, std::move(text));
  return false;
}

bool ResolvedAccess::resolve_global(const LaneAccess& what, LaneMask lanes) {
  TranslationCache& cache =
      what.access == Access::read ? what.warp.memory->reads : what.warp.memory->writes;
  const PageTable& table = *what.warp.memory->page_table;
  uint64_t first = address_.lane[first_lane(lanes)];
  const TranslationCache::Entry* page = cache.find(table, first, what.access);

  // Mostly all lanes access one page. Pieces are aligned, so none crosses the end of a page.
  if (page != nullptr && lanes == all_lanes) {
    uint64_t difference = 0, low_bits = 0, out_of_step = 0;
    for (int lane = 0; lane < warp_size; ++lane) {
      uint64_t address = address_.lane[lane];
      difference |= address ^ first;
      low_bits |= address;
      out_of_step |= address ^ (first + static_cast<uint64_t>(lane) * what.bytes);
    }
    if ((difference & ~(page->bytes - 1)) == 0 && low_bits % what.bytes == 0) {
      std::byte* host = page->host;
      for (int lane = 0; lane < warp_size; ++lane)
        host_.lane[lane] = host + (address_.lane[lane] - page->begin);
      is_contiguous_ = out_of_step == 0;
      return true;
    }
  }
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    uint64_t address = address_.lane[lane];
    if (page == nullptr || !page->covers(address)) page = cache.find(table, address, what.access);
    if (page == nullptr || address % what.bytes != 0) return fail(what, lane, "global");
    host_.lane[lane] = page->host + (address - page->begin);
  }
  return true;
}

bool ResolvedAccess::resolve_shared(const LaneAccess& what, LaneMask lanes) {
  const MemoryView& memory = *what.warp.memory;
  if (lanes == all_lanes) {
    uint64_t first = address_.lane[0], highest = 0, low_bits = 0, out_of_step = 0;
    for (int lane = 0; lane < warp_size; ++lane) {
      uint64_t address = address_.lane[lane];
      highest = address > highest ? address : highest;
      low_bits |= address;
      out_of_step |= address ^ (first + static_cast<uint64_t>(lane) * what.bytes);
    }
    if (highest <= memory.shared_bytes - what.bytes && low_bits % what.bytes == 0 &&
        memory.shared_bytes >= what.bytes) {
      for (int lane = 0; lane < warp_size; ++lane)
        host_.lane[lane] = memory.shared + address_.lane[lane];
      is_contiguous_ = out_of_step == 0;
      return true;
    }
  }
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    uint64_t address = address_.lane[lane];
    std::byte* host = find_shared(what.warp, address, what.bytes);
    if (host == nullptr || address % what.bytes != 0) return fail(what, lane, "shared");
    host_.lane[lane] = host;
  }
  return true;
}

bool ResolvedAccess::resolve_local(const LaneAccess& what, LaneMask lanes) {
  std::byte* local = what.warp.local;
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    uint64_t address = address_.lane[lane];
    if (address % what.bytes != 0 || address + what.bytes > what.warp.local_bytes)
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

void ResolvedAccess::commit(Warp& warp) {
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
    if (what.access != Access::read || address % what.bytes != 0 ||
        address + what.bytes > memory.parameter_bytes)
      return fail(what, lane, "parameter");
    host_.lane[lane] = const_cast<std::byte*>(memory.parameters) + address;
  }
  return true;
}

bool ResolvedAccess::resolve_generic(const LaneAccess& what, LaneMask lanes) {
  uint64_t first = address_.lane[first_lane(lanes)] >> window_shift;
  bool is_one_window = true;
  for_each_lane(lanes,
                [&](int lane) { is_one_window &= address_.lane[lane] >> window_shift == first; });
  if (!is_one_window) {
    for (LaneMask rest = lanes; rest != 0; rest &= rest - 1)
      if (!resolve_lane(what, first_lane(rest))) return false;
    return true;
  }
  if (static_cast<Window>(first) == Window::global) return resolve_global(what, lanes);
  for_each_lane(lanes, [&](int lane) { address_.lane[lane] &= window_mask; });
  switch (static_cast<Window>(first)) {
    case Window::shared:
      return resolve_shared(what, lanes);
    case Window::local:
      return resolve_local(what, lanes);
    case Window::param:
      return resolve_parameter(what, lanes);
    default:
      break;
  }
  address_.lane[first_lane(lanes)] |= first << window_shift;
  return fail(what, first_lane(lanes), "generic");
}

bool ResolvedAccess::resolve_lane(const LaneAccess& what, int lane) {
  return resolve_generic(what, LaneMask{1} << lane);
}

template <MemorySpace space, AddressKind kind>
bool ResolvedAccess::resolve(Warp& warp, const Instruction& instruction, LaneMask lanes,
                             OperandRef address, uint32_t bytes, Access access) {
  bytes_ = bytes;
  uint64_t offset = static_cast<uint64_t>(instruction.immediate);
  if constexpr (kind == AddressKind::fixed) {
    if (space == MemorySpace::frame) offset += warp.frame->local_base;
    for (int lane = 0; lane < warp_size; ++lane) address_.lane[lane] = offset;
  } else if constexpr (kind == AddressKind::register_32) {
    // 32-bit addresses wrap around.
    const uint32_t* base = warp.lanes<uint32_t>(address);
    for (int lane = 0; lane < warp_size; ++lane)
      address_.lane[lane] = static_cast<uint32_t>(base[lane] + offset);
  } else {
    const uint64_t* base = warp.lanes<uint64_t>(address);
    for (int lane = 0; lane < warp_size; ++lane) address_.lane[lane] = base[lane] + offset;
  }
  LaneAccess what = {warp, instruction, bytes, access};
  switch (space) {
    case MemorySpace::generic:
      return resolve_generic(what, lanes);
    case MemorySpace::global:
      return resolve_global(what, lanes);
    case MemorySpace::shared:
      return resolve_shared(what, lanes);
    case MemorySpace::local:
    case MemorySpace::frame:
      return resolve_local(what, lanes);
    case MemorySpace::parameter:
      return resolve_parameter(what, lanes);
  }
  return false;
}

template bool ResolvedAccess::resolve<MemorySpace::generic, AddressKind::register_64>(
    Warp&, const Instruction&, LaneMask, OperandRef, uint32_t, Access);
template bool ResolvedAccess::resolve<MemorySpace::global, AddressKind::register_64>(
    Warp&, const Instruction&, LaneMask, OperandRef, uint32_t, Access);
template bool ResolvedAccess::resolve<MemorySpace::shared, AddressKind::register_64>(
    Warp&, const Instruction&, LaneMask, OperandRef, uint32_t, Access);
template bool ResolvedAccess::resolve<MemorySpace::shared, AddressKind::register_32>(
    Warp&, const Instruction&, LaneMask, OperandRef, uint32_t, Access);
template bool ResolvedAccess::resolve<MemorySpace::local, AddressKind::register_64>(
    Warp&, const Instruction&, LaneMask, OperandRef, uint32_t, Access);
template bool ResolvedAccess::resolve<MemorySpace::local, AddressKind::register_32>(
    Warp&, const Instruction&, LaneMask, OperandRef, uint32_t, Access);
template bool ResolvedAccess::resolve<MemorySpace::parameter, AddressKind::register_64>(
    Warp&, const Instruction&, LaneMask, OperandRef, uint32_t, Access);
template bool ResolvedAccess::resolve<MemorySpace::parameter, AddressKind::register_32>(
    Warp&, const Instruction&, LaneMask, OperandRef, uint32_t, Access);
template bool ResolvedAccess::resolve<MemorySpace::parameter, AddressKind::fixed>(
    Warp&, const Instruction&, LaneMask, OperandRef, uint32_t, Access);
template bool ResolvedAccess::resolve<MemorySpace::frame, AddressKind::fixed>(Warp&,
                                                                              const Instruction&,
                                                                              LaneMask, OperandRef,
                                                                              uint32_t, Access);

namespace {

/// Host address of one byte in generic addressing, and how many bytes from there on are together;
/// null if there is no such access.
std::byte* find_piece(Warp& warp, int lane, uint64_t address, Access access, uint64_t& together) {
  uint64_t offset = address & window_mask;
  switch (static_cast<Window>(address >> window_shift)) {
    case Window::global: {
      Translation found = warp.memory->page_table->find(address, access);
      together = found.page_begin + found.page_bytes - address;
      return found.host;
    }
    case Window::shared:
      together = 1;
      return find_shared(warp, offset, 1);
    case Window::local:
      together = 4 - offset % 4;
      if (offset >= warp.local_bytes) return nullptr;
      return warp.local + local_position(static_cast<uint32_t>(offset), lane);
    case Window::param:
      together = 1;
      if (access != Access::read || offset >= warp.memory->parameter_bytes) return nullptr;
      return const_cast<std::byte*>(warp.memory->parameters) + offset;
    default:
      return nullptr;
  }
}

template <class Move>
bool for_each_piece(Warp& warp, const Instruction& at, int lane, uint64_t address, uint64_t bytes,
                    Access access, Move move) {
  uint64_t done = 0;
  while (done < bytes) {
    uint64_t together = 0;
    std::byte* host = find_piece(warp, lane, address + done, access, together);
    if (host == nullptr) {
      warp.raise(FaultKind::illegal_address, at, lane,
                 "illegal address " + hexadecimal(address + done));
      return false;
    }
    uint64_t piece = std::min(together, bytes - done);
    move(host, done, piece);
    done += piece;
  }
  return true;
}

}  // namespace

bool read_generic(Warp& warp, const Instruction& at, int lane, uint64_t address, void* to,
                  uint64_t bytes) {
  return for_each_piece(warp, at, lane, address, bytes, Access::read,
                        [&](std::byte* host, uint64_t done, uint64_t piece) {
                          std::memcpy(static_cast<std::byte*>(to) + done, host, piece);
                        });
}

bool write_generic(Warp& warp, const Instruction& at, int lane, uint64_t address, const void* from,
                   uint64_t bytes) {
  return for_each_piece(warp, at, lane, address, bytes, Access::read_write,
                        [&](std::byte* host, uint64_t done, uint64_t piece) {
                          std::memcpy(host, static_cast<const std::byte*>(from) + done, piece);
                        });
}

}  // namespace fargpu::softgpu
