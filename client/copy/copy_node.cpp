#include "copy_node.h"

#include "client/memory/host_memory.h"
#include "client/memory/memory_map.h"
#include "protocol/handle.h"

namespace fargpu::client {
namespace {

// One side of a copy: memory that the GPU reaches is named as it is, other memory of the program becomes a part of the
// graph.
CUresult name_side(const ProgramMemory& memory, const CopyShape& shape, CopySide& side, bool source, NewParts& parts) {
  if (side.in_array())
    return Handle(side.place).well_formed(HandleKind::array) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  if (side.pitch == 0) side.pitch = side.x + shape.width;  // not specified: without gaps
  if (side.height == 0) side.height = side.y + shape.height;
  if (side.pitch < side.x + shape.width) return CUDA_ERROR_INVALID_VALUE;
  if (shape.depth > 1 && side.height < side.y + shape.height) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t begin = side.begin();
  const auto region = memory.map.find(begin);
  const auto seen_at = [&](std::uint64_t address) {
    side.kind = CopySide::Kind::device;
    side.place = address;
    return CUDA_SUCCESS;
  };
  if (region && region->on_device()) return seen_at(side.place);
  if (region && !region->contains(begin, side.extent(shape))) return CUDA_ERROR_INVALID_VALUE;
  if (region && memory.host.mapped(begin))  // kernels see it, and the worker keeps its contents
    return seen_at(side.place - region->base + region->device_address);
  if (!region && (side.kind == CopySide::Kind::device || side.place == 0 || !memory.pageable(begin)))
    return CUDA_ERROR_INVALID_VALUE;
  side = {.kind = CopySide::Kind::part, .place = parts.add(GraphParts::Memory{side, shape, source})};
  return CUDA_SUCCESS;
}

}  // namespace

CUresult write_copy(const ProgramMemory& memory, const CopyShape& shape, CopySide source, CopySide target,
                    wire::Copy::Builder out, NewParts& parts) {
  if (shape.empty()) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = name_side(memory, shape, source, true, parts); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = name_side(memory, shape, target, false, parts); bad != CUDA_SUCCESS) return bad;
  encode(shape, source, target, out);
  return CUDA_SUCCESS;
}

CUDA_MEMCPY3D read_copy(const MemoryMap& map, const GraphParts& parts, wire::Copy::Reader in) {
  const auto side_of = [&](wire::CopySide::Reader from) {
    CopySide side = decode(from);
    if (side.kind == CopySide::Kind::part) {
      const auto memory = parts.memory(side.place);
      return memory ? memory->side : CopySide{.kind = CopySide::Kind::device};
    }
    if (side.in_array()) return side;
    // Host memory that kernels see goes by the address that they know.
    const auto region = map.find(side.place);
    if (region && (region->on_host() || region->kind == Region::Kind::alias)) {
      side.kind = CopySide::Kind::host;
      if (region->kind == Region::Kind::alias) side.place += region->owner - region->base;
    }
    return side;
  };
  return cuda_copy<CUDA_MEMCPY3D>(shape_of(in), side_of(in.getSource()), side_of(in.getTarget()));
}

}  // namespace fargpu::client
