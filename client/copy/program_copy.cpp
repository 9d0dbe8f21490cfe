#include "program_copy.h"

#include "calls_array.capnp.h"
#include "client/call/refusal.h"
#include "protocol/extent.h"
#include "client/call/remote_call.h"
#include "struct_codecs.h"

namespace fargpu::client {
namespace {

// Whether the last byte of a side in memory is so far behind its place that no arithmetic on it can be trusted.
bool too_far(const CopyShape& shape, const CopySide& side) {
  constexpr std::uint64_t any_max = std::uint64_t{1} << 40, end_max = std::uint64_t{1} << 62;
  for (const std::uint64_t any :
       {shape.width, shape.height, shape.depth, side.x, side.y, side.z, side.pitch, side.height}) {
    if (any > any_max) return true;
  }
  using Wide = unsigned __int128;
  const Wide slices = Wide{side.z + shape.depth} * side.pitch * side.height;
  return slices + Wide{side.y + shape.height} * side.pitch + side.x + shape.width > end_max;
}

// One side as a program names it: with what it left out, and, in memory, with the address of the first row.
CUresult settle_side(const CopyShape& shape, CopySide& side) {
  if (side.in_array()) return CUDA_SUCCESS;
  const std::uint64_t row = side.x + shape.width;
  if (side.pitch == 0) side.pitch = row;  // not specified: without gaps
  if (side.height == 0) side.height = side.y + shape.height;
  if (side.pitch < row || (shape.depth > 1 && side.height < side.y + shape.height)) return CUDA_ERROR_INVALID_VALUE;
  if (too_far(shape, side)) return CUDA_ERROR_INVALID_VALUE;
  side = side.from(0, 0, 0);
  return CUDA_SUCCESS;
}

CUresult settle_sides(Copy& copy) {
  const CUresult bad = settle_side(copy.shape, copy.source);
  return bad == CUDA_SUCCESS ? settle_side(copy.shape, copy.target) : bad;
}

// Asked once: arrays do not change.
CUresult describe(Thread& thread, Context& context, Handle array, CUDA_ARRAY3D_DESCRIPTOR& description) {
  RemoteCall<wire::CuArray3DGetDescriptorV2> call(thread, &context);
  call.in().setHArray(array.value());
  const CUresult result = call.recall();
  if (result == CUDA_SUCCESS) decode(call.out().getPArrayDescriptor(), description);
  return result;
}

}  // namespace

void Copy::flatten() {
  if (target.in_array() || source.in_array() || shape.height == 1 || target.pitch != shape.width ||
      source.pitch != shape.width)
    return;
  if (shape.depth > 1 && (target.height != shape.height || source.height != shape.height)) return;
  shape = {shape.width * shape.height * shape.depth};
  target.pitch = source.pitch = shape.width;
  target.height = source.height = 1;
}

namespace {

template <class Params>
CUresult read_volume(const Params& params, Copy& copy) {
  const auto source = source_of(params), target = target_of(params);
  if (!source || !target) return CUDA_ERROR_INVALID_VALUE;
  copy.shape = shape_of(params);
  copy.source = *source;
  copy.target = *target;
  // Levels are copied as arrays of their own; memory has none, and there the number says nothing.
  if ((source->in_array() && source->level != 0) || (target->in_array() && target->level != 0))
    return CUDA_ERROR_INVALID_VALUE;
  return settle_sides(copy);
}

}  // namespace

CUresult read_copy(const CUDA_MEMCPY2D& params, Copy& copy) { return read_volume(volume_of(params), copy); }
CUresult read_copy(const CUDA_MEMCPY3D& params, Copy& copy) { return read_volume(params, copy); }
CUresult read_copy(const CUDA_MEMCPY3D_PEER& params, Copy& copy) { return read_volume(params, copy); }

namespace {

// Bytes of an element of the array; of both, if both sides are arrays.
CUresult element_of(Thread& thread, Context& context, const CUDA_MEMCPY3D_BATCH_OP& p, std::size_t& bytes) {
  bytes = 0;
  for (const CUmemcpy3DOperand* side : {&p.src, &p.dst}) {
    if (side->type == CU_MEMCPY_OPERAND_TYPE_POINTER) continue;
    if (side->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    if (!handle_of(side->op.array.array).well_formed(HandleKind::array)) return CUDA_ERROR_INVALID_HANDLE;
    CUDA_ARRAY3D_DESCRIPTOR array{};
    if (const CUresult bad = describe(thread, context, handle_of(side->op.array.array), array); bad != CUDA_SUCCESS)
      return bad;
    const std::size_t own = element_bytes(array.Format, array.NumChannels);
    if (own == 0) return refuse_use("a batch copy of an array whose elements have no place of their own");
    if (bytes != 0 && own != bytes) return CUDA_ERROR_INVALID_VALUE;
    bytes = own;
  }
  if (bytes == 0) bytes = 1;
  return CUDA_SUCCESS;
}

// What a program may ask for at all: a product of such a number and of an element's bytes stays within 64 bits.
constexpr std::size_t extent_max = std::size_t{1} << 40;

CUresult read_operand(const CUmemcpy3DOperand& operand, std::size_t element, CopySide& side) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const CUoffset3D& offset = operand.op.array.offset;
    if (offset.x > extent_max) return CUDA_ERROR_INVALID_VALUE;
    side = {.kind = CopySide::Kind::array,
            .place = handle_of(operand.op.array.array).value(),
            .x = offset.x * element,
            .y = offset.y,
            .z = offset.z};
    return CUDA_SUCCESS;
  }
  const auto& pointer = operand.op.ptr;
  if (pointer.rowLength > extent_max || pointer.layerHeight > extent_max) return CUDA_ERROR_INVALID_VALUE;
  side = {.kind = CopySide::Kind::unified,
          .place = pointer.ptr,
          .pitch = pointer.rowLength * element,
          .height = pointer.layerHeight};
  return CUDA_SUCCESS;
}

}  // namespace

CUresult read_copy(Thread& thread, Context& context, const CUDA_MEMCPY3D_BATCH_OP& p, Copy& copy) {
  if (p.extent.width == 0 || p.extent.height == 0 || p.extent.depth == 0) return CUDA_ERROR_INVALID_VALUE;
  if (p.extent.width > extent_max || p.extent.height > extent_max || p.extent.depth > extent_max)
    return CUDA_ERROR_INVALID_VALUE;
  std::size_t element = 1;
  if (const CUresult bad = element_of(thread, context, p, element); bad != CUDA_SUCCESS) return bad;
  copy.shape = {p.extent.width * element, p.extent.height, p.extent.depth};
  if (const CUresult bad = read_operand(p.src, element, copy.source); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = read_operand(p.dst, element, copy.target); bad != CUDA_SUCCESS) return bad;
  return settle_sides(copy);
}

CUresult check_arrays(Thread& thread, Context& context, const Copy& copy) {
  for (const CopySide* side : {&copy.source, &copy.target}) {
    if (!side->in_array()) continue;
    Context* const named = side == &copy.source ? copy.source_context : copy.target_context;
    const Handle handle(side->place);
    if (!handle.well_formed(HandleKind::array)) return CUDA_ERROR_INVALID_HANDLE;
    CUDA_ARRAY3D_DESCRIPTOR array{};
    if (const CUresult bad = describe(thread, named ? *named : context, handle, array); bad != CUDA_SUCCESS) return bad;
    if (!array_has(array, side->x, side->y, side->z, copy.shape.width, copy.shape.height, copy.shape.depth))
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client
