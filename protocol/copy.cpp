#include "copy.h"

#include "errors.h"

namespace fargpu {
namespace {

using Kind = CopySide::Kind;

/// The fields of one side, which CUDA names apart.
template <class Params, class Host>
struct Half {
  CUmemorytype Params::*type;
  Host Params::*host;
  CUdeviceptr Params::*device;
  CUarray Params::*array;
  std::size_t Params::*level;
  std::size_t Params::*x;
  std::size_t Params::*y;
  std::size_t Params::*z;
  std::size_t Params::*pitch;
  std::size_t Params::*height;
};

template <class P>
constexpr Half<P, const void*> source_half{&P::srcMemoryType, &P::srcHost, &P::srcDevice, &P::srcArray, &P::srcLOD,
                                           &P::srcXInBytes,   &P::srcY,    &P::srcZ,      &P::srcPitch, &P::srcHeight};
template <class P>
constexpr Half<P, void*> target_half{&P::dstMemoryType, &P::dstHost, &P::dstDevice, &P::dstArray, &P::dstLOD,
                                     &P::dstXInBytes,   &P::dstY,    &P::dstZ,      &P::dstPitch, &P::dstHeight};

template <class Params, class Host>
std::optional<CopySide> side_of(const Params& params, const Half<Params, Host>& half) {
  CopySide side{.level = params.*half.level,
                .x = params.*half.x,
                .y = params.*half.y,
                .z = params.*half.z,
                .pitch = params.*half.pitch,
                .height = params.*half.height};
  switch (params.*half.type) {
    case CU_MEMORYTYPE_HOST:
      side.kind = Kind::host;
      side.place = reinterpret_cast<std::uint64_t>(params.*half.host);
      return side;
    case CU_MEMORYTYPE_ARRAY:
      side.kind = Kind::array;
      side.place = reinterpret_cast<std::uint64_t>(params.*half.array);
      return side;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      side.kind = params.*half.type == CU_MEMORYTYPE_DEVICE ? Kind::device : Kind::unified;
      side.place = params.*half.device;
      return side;
  }
  return std::nullopt;
}

template <class Params, class Host>
void put(const CopySide& side, const Half<Params, Host>& half, Params& params) {
  params.*half.level = side.level;
  params.*half.x = side.x;
  params.*half.y = side.y;
  params.*half.z = side.z;
  params.*half.pitch = side.pitch;
  params.*half.height = side.height;
  switch (side.kind) {
    case Kind::host:
      params.*half.type = CU_MEMORYTYPE_HOST;
      params.*half.host = reinterpret_cast<Host>(side.place);
      return;
    case Kind::array:
      params.*half.type = CU_MEMORYTYPE_ARRAY;
      params.*half.array = reinterpret_cast<CUarray>(side.place);
      return;
    case Kind::device:
    case Kind::unified:
      params.*half.type = side.kind == Kind::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED;
      params.*half.device = side.place;
      return;
    default: throw std::logic_error("a side of a copy that CUDA does not know");
  }
}

}  // namespace

std::uint64_t CopyShape::bytes() const {
  std::uint64_t rows, all;
  return __builtin_mul_overflow(height, depth, &rows) || __builtin_mul_overflow(rows, width, &all) ? ~std::uint64_t{0}
                                                                                                   : all;
}

CopySide CopySide::from(std::uint64_t column, std::uint64_t row_number, std::uint64_t slice_number) const {
  CopySide part = *this;
  if (in_array()) {
    part.x += column;
    part.y += row_number;
    part.z += slice_number;
  } else {
    part.place = row(row_number, slice_number) + column;
    part.x = part.y = part.z = 0;
  }
  return part;
}

template <class Params>
CopyShape shape_of(const Params& params) {
  return {params.WidthInBytes, params.Height, params.Depth};
}
template <class Params>
std::optional<CopySide> source_of(const Params& params) {
  return side_of(params, source_half<Params>);
}
template <class Params>
std::optional<CopySide> target_of(const Params& params) {
  return side_of(params, target_half<Params>);
}
template <class Params>
Params cuda_copy(const CopyShape& shape, const CopySide& source, const CopySide& target) {
  Params params{};
  params.WidthInBytes = shape.width;
  params.Height = shape.height;
  params.Depth = shape.depth;
  put(source, source_half<Params>, params);
  put(target, target_half<Params>, params);
  return params;
}

template CopyShape shape_of(const CUDA_MEMCPY3D&);
template CopyShape shape_of(const CUDA_MEMCPY3D_PEER&);
template std::optional<CopySide> source_of(const CUDA_MEMCPY3D&);
template std::optional<CopySide> source_of(const CUDA_MEMCPY3D_PEER&);
template std::optional<CopySide> target_of(const CUDA_MEMCPY3D&);
template std::optional<CopySide> target_of(const CUDA_MEMCPY3D_PEER&);
template CUDA_MEMCPY3D cuda_copy(const CopyShape&, const CopySide&, const CopySide&);
template CUDA_MEMCPY3D_PEER cuda_copy(const CopyShape&, const CopySide&, const CopySide&);

CUDA_MEMCPY3D volume_of(const CUDA_MEMCPY2D& p) {
  return {.srcXInBytes = p.srcXInBytes,
          .srcY = p.srcY,
          .srcMemoryType = p.srcMemoryType,
          .srcHost = p.srcHost,
          .srcDevice = p.srcDevice,
          .srcArray = p.srcArray,
          .srcPitch = p.srcPitch,
          .srcHeight = p.Height,
          .dstXInBytes = p.dstXInBytes,
          .dstY = p.dstY,
          .dstMemoryType = p.dstMemoryType,
          .dstHost = p.dstHost,
          .dstDevice = p.dstDevice,
          .dstArray = p.dstArray,
          .dstPitch = p.dstPitch,
          .dstHeight = p.Height,
          .WidthInBytes = p.WidthInBytes,
          .Height = p.Height,
          .Depth = 1};
}

void encode(const CopySide& side, wire::CopySide::Builder out) {
  auto place = out.getPlace();
  switch (side.kind) {
    case Kind::frame: return place.setFrame();
    case Kind::block: return place.setBlock(side.place);
    case Kind::part: return place.setPart(side.place);
    case Kind::pull: return place.setPull(side.place);
    case Kind::lanes: return place.setLanes(static_cast<std::uint32_t>(side.place));
    case Kind::peer: return place.setPeer(side.place);
    case Kind::changes: return place.setChanges();
    case Kind::device: place.setDevice(side.place); break;
    case Kind::array: place.setArray(side.place); break;
    case Kind::host:
    case Kind::unified: throw std::logic_error("a side of a copy that does not travel");
  }
  out.setLevel(side.level);
  out.setX(side.x);
  out.setY(side.y);
  out.setZ(side.z);
  out.setPitch(side.pitch);
  out.setHeight(side.height);
}

void encode(const CopyShape& shape, const CopySide& source, const CopySide& target, wire::Copy::Builder copy) {
  copy.setWidth(shape.width);
  copy.setHeight(shape.height);
  copy.setDepth(shape.depth);
  if (source.kind != Kind::frame) encode(source, copy.initSource());
  if (target.kind != Kind::frame) encode(target, copy.initTarget());
}

CopyShape shape_of(wire::Copy::Reader copy) { return {copy.getWidth(), copy.getHeight(), copy.getDepth()}; }

CopySide decode(wire::CopySide::Reader in) {
  CopySide side{.level = in.getLevel(),
                .x = in.getX(),
                .y = in.getY(),
                .z = in.getZ(),
                .pitch = in.getPitch(),
                .height = in.getHeight()};
  const auto at = [&](Kind kind, std::uint64_t place) {
    side.kind = kind;
    side.place = place;
    return side;
  };
  const auto place = in.getPlace();
  switch (place.which()) {
    case wire::CopySide::Place::FRAME: return at(Kind::frame, 0);
    case wire::CopySide::Place::DEVICE: return at(Kind::device, place.getDevice());
    case wire::CopySide::Place::ARRAY: return at(Kind::array, place.getArray());
    case wire::CopySide::Place::BLOCK: return at(Kind::block, place.getBlock());
    case wire::CopySide::Place::PART: return at(Kind::part, place.getPart());
    case wire::CopySide::Place::PULL: return at(Kind::pull, place.getPull());
    case wire::CopySide::Place::LANES: return at(Kind::lanes, place.getLanes());
    case wire::CopySide::Place::PEER: return at(Kind::peer, place.getPeer());
    case wire::CopySide::Place::CHANGES: return at(Kind::changes, 0);
  }
  throw ProtocolError("a side of a copy of a kind that is not known");
}

}  // namespace fargpu
