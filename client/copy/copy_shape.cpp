#include "copy_shape.h"

#include "calls_array.capnp.h"
#include "client/call/refusal.h"
#include "protocol/extent.h"
#include "client/call/remote_call.h"
#include "struct_codecs.h"

namespace fargpu::client {
namespace {

struct Origin {
  std::size_t x, y, z;
};

// One side of a CUDA_MEMCPY2D or 3D.
CUresult read_side(const Copy& copy, CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, const Origin& origin,
                   std::size_t pitch, std::size_t height, Rows& side) {
  switch (type) {
    case CU_MEMORYTYPE_ARRAY:
      side.in_array = true;
      side.array = handle_of(array);
      side.x = origin.x;
      side.y = origin.y;
      side.z = origin.z;
      return CUDA_SUCCESS;
    case CU_MEMORYTYPE_HOST: side.address = reinterpret_cast<std::uint64_t>(host); break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      side.address = device;
      side.known = type == CU_MEMORYTYPE_DEVICE;
      break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  const std::size_t row = origin.x + copy.width;
  if (pitch == 0) pitch = row;  // not specified: without gaps
  if (height == 0) height = origin.y + copy.height;
  if (pitch < row || (copy.depth > 1 && height < origin.y + copy.height)) return CUDA_ERROR_INVALID_VALUE;
  side.pitch = pitch;
  side.slice = pitch * height;
  side.address += origin.z * side.slice + origin.y * pitch + origin.x;
  return CUDA_SUCCESS;
}

// Asked once: arrays do not change.
CUresult describe(Thread& thread, Context& context, Handle array, CUDA_ARRAY3D_DESCRIPTOR& description) {
  RemoteCall<wire::CuArray3DGetDescriptorV2> call(thread, &context);
  if (!call) return call.error();
  call.in().setHArray(array.value());
  const CUresult result = call.recall();
  if (result == CUDA_SUCCESS) decode(call.out().getPArrayDescriptor(), description);
  return result;
}

}  // namespace

Rows Rows::from(std::uint64_t column, std::uint64_t row, std::uint64_t slice_number) const {
  Rows part = *this;
  if (in_array) {
    part.x += column;
    part.y += row;
    part.z += slice_number;
  } else {
    part.address += slice_number * slice + row * pitch + column;
  }
  return part;
}

void Copy::flatten() {
  if (target.in_array || source.in_array || height == 1 || target.pitch != width || source.pitch != width) return;
  if (depth > 1 && (target.slice != width * height || source.slice != width * height)) return;
  width *= height * depth;
  height = depth = 1;
}

CUresult read_copy(const CUDA_MEMCPY2D& p, Copy& copy) {
  copy.width = p.WidthInBytes;
  copy.height = p.Height;
  copy.depth = 1;
  const CUresult bad =
      read_side(copy, p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray, {p.srcXInBytes, p.srcY, 0}, p.srcPitch, p.Height, copy.source);
  if (bad != CUDA_SUCCESS) return bad;
  return read_side(copy, p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray, {p.dstXInBytes, p.dstY, 0}, p.dstPitch, p.Height,
                   copy.target);
}

namespace {

template <class Params>
CUresult read_volume(const Params& p, Copy& copy) {
  // Levels are copied as arrays of their own; memory has none, and there the number says nothing.
  if ((p.srcMemoryType == CU_MEMORYTYPE_ARRAY && p.srcLOD != 0) || (p.dstMemoryType == CU_MEMORYTYPE_ARRAY && p.dstLOD != 0))
    return CUDA_ERROR_INVALID_VALUE;
  copy.width = p.WidthInBytes;
  copy.height = p.Height;
  copy.depth = p.Depth;
  const CUresult bad = read_side(copy, p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray, {p.srcXInBytes, p.srcY, p.srcZ}, p.srcPitch,
                                 p.srcHeight, copy.source);
  if (bad != CUDA_SUCCESS) return bad;
  return read_side(copy, p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray, {p.dstXInBytes, p.dstY, p.dstZ}, p.dstPitch, p.dstHeight,
                   copy.target);
}

}  // namespace

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
    if (const CUresult bad = describe(thread, context, handle_of(side->op.array.array), array); bad != CUDA_SUCCESS) return bad;
    const std::size_t own = element_bytes(array.Format, array.NumChannels);
    if (own == 0) return refuse_use("a batch copy of an array whose elements have no place of their own");
    if (bytes != 0 && own != bytes) return CUDA_ERROR_INVALID_VALUE;
    bytes = own;
  }
  if (bytes == 0) bytes = 1;
  return CUDA_SUCCESS;
}

// What a program may ask for at all: products of such numbers stay within 64 bits.
constexpr std::size_t extent_max = std::size_t{1} << 20;

CUresult read_operand(const Copy& copy, const CUmemcpy3DOperand& operand, std::size_t element, Rows& side) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const CUoffset3D& offset = operand.op.array.offset;
    if (offset.x > extent_max) return CUDA_ERROR_INVALID_VALUE;
    return read_side(copy, CU_MEMORYTYPE_ARRAY, nullptr, 0, operand.op.array.array, {offset.x * element, offset.y, offset.z}, 0, 0, side);
  }
  const auto& pointer = operand.op.ptr;
  if (pointer.rowLength > std::size_t{1} << 40 || pointer.layerHeight > std::size_t{1} << 20) return CUDA_ERROR_INVALID_VALUE;
  return read_side(copy, CU_MEMORYTYPE_UNIFIED, nullptr, pointer.ptr, nullptr, {0, 0, 0}, pointer.rowLength * element, pointer.layerHeight,
                   side);
}

}  // namespace

CUresult read_copy(Thread& thread, Context& context, const CUDA_MEMCPY3D_BATCH_OP& p, Copy& copy) {
  if (p.extent.width == 0 || p.extent.height == 0 || p.extent.depth == 0) return CUDA_ERROR_INVALID_VALUE;
  if (p.extent.width > std::size_t{1} << 40 || p.extent.height > extent_max || p.extent.depth > extent_max) return CUDA_ERROR_INVALID_VALUE;
  std::size_t element = 1;
  if (const CUresult bad = element_of(thread, context, p, element); bad != CUDA_SUCCESS) return bad;
  copy.width = p.extent.width * element;
  copy.height = p.extent.height;
  copy.depth = p.extent.depth;
  if (const CUresult bad = read_operand(copy, p.src, element, copy.source); bad != CUDA_SUCCESS) return bad;
  return read_operand(copy, p.dst, element, copy.target);
}

CUresult check_arrays(Thread& thread, Context& context, const Copy& copy) {
  for (const Rows* side : {&copy.source, &copy.target}) {
    if (!side->in_array) continue;
    Context* const named = side == &copy.source ? copy.source_context : copy.target_context;
    if (!side->array.well_formed(HandleKind::array)) return CUDA_ERROR_INVALID_HANDLE;
    CUDA_ARRAY3D_DESCRIPTOR array{};
    if (const CUresult bad = describe(thread, named ? *named : context, side->array, array); bad != CUDA_SUCCESS) return bad;
    if (!array_has(array, side->x, side->y, side->z, copy.width, copy.height, copy.depth)) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void write_side(const Rows& rows, wire::Side::Builder side) {
  if (rows.in_array) {
    auto place = side.initArray();
    place.setArray(rows.array.value());
    place.setX(rows.x);
    place.setY(rows.y);
    place.setZ(rows.z);
    return;
  }
  side.setAddress(rows.address);
  side.setPitch(rows.pitch);
  side.setSlice(rows.slice);
}

void write_shape(std::uint64_t width, std::uint64_t height, std::uint64_t depth, wire::Shape::Builder shape) {
  shape.setWidth(width);
  shape.setHeight(height);
  shape.setDepth(depth);
}

}  // namespace fargpu::client
