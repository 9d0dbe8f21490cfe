#include "copy_shape.h"

#include "calls_array.capnp.h"
#include "protocol/extent.h"
#include "remote_call.h"
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
    case CU_MEMORYTYPE_HOST:
      side.address = reinterpret_cast<std::uint64_t>(host);
      break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      side.address = device;
      side.known = type == CU_MEMORYTYPE_DEVICE;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
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
  RemoteCall<wire::CuArray3DGetDescriptorV2> call(thread, Opcode::cuArray3DGetDescriptor_v2, ContextNeed::none);
  if (!call) return call.error();
  call.in_context(&context);
  call.in().setHArray(array.value());
  const CUresult result = call.recall();
  if (result == CUDA_SUCCESS) decode(call.out<wire::CuArray3DGetDescriptorV2Reply>().getPArrayDescriptor(), description);
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
  const CUresult bad = read_side(copy, p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray, {p.srcXInBytes, p.srcY, 0}, p.srcPitch,
                                 p.Height, copy.source);
  if (bad != CUDA_SUCCESS) return bad;
  return read_side(copy, p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray, {p.dstXInBytes, p.dstY, 0}, p.dstPitch, p.Height,
                   copy.target);
}

namespace {

template <class Params>
CUresult read_volume(const Params& p, Copy& copy) {
  if (p.srcLOD != 0 || p.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  copy.width = p.WidthInBytes;
  copy.height = p.Height;
  copy.depth = p.Depth;
  const CUresult bad = read_side(copy, p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray, {p.srcXInBytes, p.srcY, p.srcZ},
                                 p.srcPitch, p.srcHeight, copy.source);
  if (bad != CUDA_SUCCESS) return bad;
  return read_side(copy, p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray, {p.dstXInBytes, p.dstY, p.dstZ}, p.dstPitch,
                   p.dstHeight, copy.target);
}

}  // namespace

CUresult read_copy(const CUDA_MEMCPY3D& params, Copy& copy) { return read_volume(params, copy); }
CUresult read_copy(const CUDA_MEMCPY3D_PEER& params, Copy& copy) { return read_volume(params, copy); }

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
