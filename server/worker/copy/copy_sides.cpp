#include "copy_sides.h"

#include "protocol/extent.h"
#include "server/worker/session/session.h"

namespace fargpu::server {
namespace {

// Bytes from the first to behind the last; false if that is no sensible number.
bool extent_of(const Shape& shape, const Side& side, std::uint64_t& extent) {
  constexpr std::uint64_t most = std::uint64_t{1} << 47;
  for (const std::uint64_t number : {shape.width, shape.height, shape.depth, side.pitch, side.slice})
    if (number > most) return false;
  if ((shape.height > 1 && side.pitch < shape.width) || (shape.depth > 1 && side.slice < side.pitch)) return false;
  unsigned __int128 sum = static_cast<unsigned __int128>(shape.depth - 1) * side.slice;
  sum += static_cast<unsigned __int128>(shape.height - 1) * side.pitch;
  sum += shape.width;
  extent = static_cast<std::uint64_t>(sum);
  return sum <= most;
}

// A single row has no pitch that counts, and a single slice no height, but the driver wants sensible ones.
std::uint64_t pitch_of(const Side& side, const CUDA_MEMCPY3D& copy) {
  return copy.Height > 1 || copy.Depth > 1 ? side.pitch : copy.WidthInBytes;
}
std::uint64_t height_of(const Side& side, const CUDA_MEMCPY3D& copy) {
  return copy.Depth > 1 && side.pitch ? side.slice / side.pitch : copy.Height;
}

// The driver checks this too, but nobody knows what it does with numbers that overflow.
bool array_holds(Session& session, const Shape& shape, const Side& side) {
  CUDA_ARRAY3D_DESCRIPTOR array{};
  return session.driver().cuArray3DGetDescriptor_v2(&array, side.array) == CUDA_SUCCESS &&
         array_has(array, side.x, side.y, side.z, shape.width, shape.height, shape.depth);
}

}  // namespace

Side Side::from(std::uint64_t column, std::uint64_t row) const {
  Side part = *this;
  if (array) {
    part.x += column;
    part.y += row;
  } else {
    part.address += row * pitch + column;
  }
  return part;
}

bool Side::alive(Session& session) const {
  CUarray now{};
  return !array || session.objects().resolve(HandleKind::array, handle, now);
}

CUresult read_side(Session& session, wire::Side::Reader in, const Shape& shape, Side& side) {
  if (shape.width == 0 || shape.height == 0 || shape.depth == 0) return CUDA_ERROR_INVALID_VALUE;
  if (in.hasArray()) {
    const auto place = in.getArray();
    side.handle = place.getArray();
    if (!session.objects().resolve(HandleKind::array, side.handle, side.array)) return Objects::invalid(HandleKind::array);
    side.x = place.getX();
    side.y = place.getY();
    side.z = place.getZ();
    return array_holds(session, shape, side) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  side.address = in.getAddress();
  side.pitch = in.getPitch();
  side.slice = in.getSlice();
  std::uint64_t extent = 0;
  return extent_of(shape, side, extent) && session.memory().holds(side.address, extent) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_MEMCPY3D copy_of(const Shape& shape) {
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = shape.width;
  copy.Height = shape.height;
  copy.Depth = shape.depth;
  return copy;
}

void put_source(const Side& side, CUDA_MEMCPY3D& copy) {
  if (side.array) {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = side.array;
    copy.srcXInBytes = side.x;
    copy.srcY = side.y;
    copy.srcZ = side.z;
    return;
  }
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = side.address;
  copy.srcPitch = pitch_of(side, copy);
  copy.srcHeight = height_of(side, copy);
}

void put_target(const Side& side, CUDA_MEMCPY3D& copy) {
  if (side.array) {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = side.array;
    copy.dstXInBytes = side.x;
    copy.dstY = side.y;
    copy.dstZ = side.z;
    return;
  }
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = side.address;
  copy.dstPitch = pitch_of(side, copy);
  copy.dstHeight = height_of(side, copy);
}

void put_packed_source(const void* host, CUDA_MEMCPY3D& copy) {
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  copy.srcPitch = copy.WidthInBytes;
  copy.srcHeight = copy.Height;
}

void put_packed_target(void* host, CUDA_MEMCPY3D& copy) {
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host;
  copy.dstPitch = copy.WidthInBytes;
  copy.dstHeight = copy.Height;
}

}  // namespace fargpu::server
