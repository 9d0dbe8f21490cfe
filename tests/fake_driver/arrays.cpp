// Arrays of the fake driver have real elements, row after row, and copies of two and three dimensions move them.

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "graphs.h"
#include "objects.h"
#include "protocol/extent.h"

namespace fargpu::fake {
namespace {

constexpr std::uint64_t page_bytes = 64u << 10;

struct Array {
  CUcontext context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR description{};
  std::vector<std::byte> bytes;
  std::uint64_t taken = 0;
  bool part = false;  // a level of a mipmapped array or a plane, which goes with its whole
  std::vector<Array*> planes;
  std::shared_ptr<void> mapped;  // memory of others

  std::uint64_t row_bytes() const {
    return description.Width * element_bytes(description.Format, description.NumChannels);
  }
  std::uint64_t rows() const { return std::max<std::uint64_t>(description.Height, 1); }
  std::uint64_t slices() const { return std::max<std::uint64_t>(description.Depth, 1); }
  std::uint64_t needs() const { return (row_bytes() * rows() * slices() + page_bytes - 1) / page_bytes * page_bytes; }
  bool mapped_later() const { return (description.Flags & (CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_SPARSE)) != 0; }
};

struct Mipmap {
  CUcontext context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR description{};
  std::vector<Array*> levels;

  std::uint64_t needs() const {
    std::uint64_t sum = 0;
    for (const Array* level : levels) sum += level->needs();
    return sum;
  }
};

CUresult make_array(const CUDA_ARRAY3D_DESCRIPTOR& description, Array*& out);

// A plane of brightness and one of colour, of half the size.
CUresult make_planes(const CUDA_ARRAY3D_DESCRIPTOR& description, Array*& out) {
  auto array = std::make_unique<Array>();
  array->context = current_context();
  array->description = description;
  for (const unsigned channels : {1u, 2u}) {
    Array* plane = nullptr;
    const CUresult bad = make_array(
        {description.Width / channels, description.Height / channels, 0, CU_AD_FORMAT_UNSIGNED_INT8, channels, 0},
        plane);
    if (bad != CUDA_SUCCESS) return bad;
    plane->part = true;
    array->planes.push_back(plane);
  }
  out = array.release();
  enlist(out);
  return CUDA_SUCCESS;
}

CUresult make_array(const CUDA_ARRAY3D_DESCRIPTOR& description, Array*& out) {
  if (description.Format == CU_AD_FORMAT_NV12 && !(description.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING))
    return make_planes(description, out);
  const bool known = element_bytes(description.Format, description.NumChannels) != 0;
  if (!known || description.Width == 0 || description.Width > 131072 || description.Height > 65536 ||
      description.Depth > 16384 ||
      (description.NumChannels != 1 && description.NumChannels != 2 && description.NumChannels != 4))
    return CUDA_ERROR_INVALID_VALUE;
  auto array = std::make_unique<Array>();
  array->context = current_context();
  array->description = description;
  if (!array->mapped_later()) {
    if (!take_memory(array->needs())) return CUDA_ERROR_OUT_OF_MEMORY;
    array->taken = array->needs();
    array->bytes.resize(array->row_bytes() * array->rows() * array->slices(), what_was_left());
  }
  out = array.release();
  enlist(out);
  return CUDA_SUCCESS;
}

void drop(Array* array) {
  for (Array* plane : array->planes) drop(plane);
  give_memory(array->taken);
  destroy<Array>(array);
}

std::vector<Array*>& arrays() {
  static std::vector<Array*> all;
  return all;
}
std::vector<Mipmap*>& mipmaps() {
  static std::vector<Mipmap*> all;
  return all;
}

void drop(Mipmap* mipmap) {
  for (Array* level : mipmap->levels) drop(level);
  destroy<Mipmap>(mipmap);
}

// Bytes of one row of a copy on one side, or null.
std::byte* row_of(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, std::size_t pitch,
                  std::size_t height, std::size_t x, std::size_t y, std::size_t z, std::size_t width) {
  const std::size_t offset = (z * height + y) * pitch + x;
  if (type == CU_MEMORYTYPE_HOST) return const_cast<std::byte*>(static_cast<const std::byte*>(host)) + offset;
  if (type == CU_MEMORYTYPE_DEVICE) return pitch < x + width ? nullptr : translate(device + offset, width);
  Array* const a = live<Array>(array);
  if (!a || a->bytes.empty() || x + width > a->row_bytes() || y >= a->rows() || z >= a->slices()) return nullptr;
  return a->bytes.data() + (z * a->rows() + y) * a->row_bytes() + x;
}

}  // namespace

void drop_arrays(CUcontext context) {
  std::erase_if(arrays(), [&](Array* array) { return array->context == context ? drop(array), true : false; });
  std::erase_if(mipmaps(), [&](Mipmap* mipmap) { return mipmap->context == context ? drop(mipmap), true : false; });
}

CUresult run_copy(const CUDA_MEMCPY3D& p) {
  for (std::size_t z = 0; z < p.Depth; ++z) {
    for (std::size_t y = 0; y < p.Height; ++y) {
      std::byte* const to = row_of(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray, p.dstPitch, p.dstHeight,
                                   p.dstXInBytes, p.dstY + y, p.dstZ + z, p.WidthInBytes);
      const std::byte* const from = row_of(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray, p.srcPitch, p.srcHeight,
                                           p.srcXInBytes, p.srcY + y, p.srcZ + z, p.WidthInBytes);
      if (!to || !from) return CUDA_ERROR_INVALID_VALUE;
      copy_bytes(to, from, p.WidthInBytes);
    }
  }
  return CUDA_SUCCESS;
}

namespace behaviour {

CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* description) {
  const Lock lock(mutex());
  if (const CUresult bad = usable(); bad != CUDA_SUCCESS) return bad;
  Array* array = nullptr;
  if (const CUresult bad = make_array(*description, array); bad != CUDA_SUCCESS) return bad;
  arrays().push_back(array);
  *out = reinterpret_cast<CUarray>(array);
  return CUDA_SUCCESS;
}
CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* description) {
  const CUDA_ARRAY3D_DESCRIPTOR full{description->Width,  description->Height,      0,
                                     description->Format, description->NumChannels, 0};
  return behaviour::cuArray3DCreate_v2(out, &full);
}
CUresult cuArrayDestroy(CUarray handle) {
  const Lock lock(mutex());
  Array* const array = live<Array>(handle);
  if (!array || array->part) return CUDA_ERROR_INVALID_HANDLE;
  std::erase(arrays(), array);
  drop(array);
  return CUDA_SUCCESS;
}
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* description, CUarray handle) {
  const Lock lock(mutex());
  const Array* const array = live<Array>(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  *description = array->description;
  return CUDA_SUCCESS;
}
CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* description, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR full{};
  const CUresult result = behaviour::cuArray3DGetDescriptor_v2(&full, handle);
  *description = {full.Width, full.Height, full.Format, full.NumChannels};
  return result;
}
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* needs, CUarray handle, CUdevice) {
  const Lock lock(mutex());
  const Array* const array = live<Array>(handle);
  if (!array || !array->mapped_later()) return CUDA_ERROR_INVALID_VALUE;
  *needs = {.size = array->needs(), .alignment = page_bytes, .reserved = {}};
  return CUDA_SUCCESS;
}
CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* properties, CUarray handle) {
  const Lock lock(mutex());
  const Array* const array = live<Array>(handle);
  if (!array || !(array->description.Flags & CUDA_ARRAY3D_SPARSE)) return CUDA_ERROR_INVALID_VALUE;
  *properties = {
      .tileExtent = {128, 128, 1}, .miptailFirstLevel = 3, .miptailSize = page_bytes, .flags = 0, .reserved = {}};
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* description, unsigned levels) {
  const Lock lock(mutex());
  if (const CUresult bad = usable(); bad != CUDA_SUCCESS) return bad;
  auto mipmap = std::make_unique<Mipmap>();
  mipmap->context = current_context();
  mipmap->description = *description;
  CUDA_ARRAY3D_DESCRIPTOR level = *description;
  // No more than lead to an array of one element.
  const auto most =
      static_cast<unsigned>(std::bit_width(std::max({level.Width, level.Height, level.Depth, std::size_t{1}})));
  for (unsigned i = 0; i < std::clamp(levels, 1u, most); ++i) {
    Array* array = nullptr;
    if (const CUresult bad = make_array(level, array); bad != CUDA_SUCCESS) {
      for (Array* made : mipmap->levels) drop(made);
      return bad;
    }
    array->part = true;
    mipmap->levels.push_back(array);
    level.Width = std::max<std::size_t>(level.Width / 2, 1);
    if (level.Height) level.Height = std::max<std::size_t>(level.Height / 2, 1);
  }
  mipmaps().push_back(mipmap.get());
  enlist(mipmap.get());
  *out = reinterpret_cast<CUmipmappedArray>(mipmap.release());
  return CUDA_SUCCESS;
}
CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  const Lock lock(mutex());
  Mipmap* const mipmap = live<Mipmap>(handle);
  if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
  std::erase(mipmaps(), mipmap);
  drop(mipmap);
  return CUDA_SUCCESS;
}
CUresult cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray handle, unsigned level) {
  const Lock lock(mutex());
  const Mipmap* const mipmap = live<Mipmap>(handle);
  if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
  if (level >= mipmap->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUarray>(mipmap->levels[level]);
  return CUDA_SUCCESS;
}
CUresult cuArrayGetPlane(CUarray* out, CUarray handle, unsigned plane) {
  const Lock lock(mutex());
  const Array* const array = live<Array>(handle);
  if (!array || plane >= array->planes.size()) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUarray>(array->planes[plane]);
  return CUDA_SUCCESS;
}
CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* properties, CUmipmappedArray handle) {
  const Lock lock(mutex());
  const Mipmap* const mipmap = live<Mipmap>(handle);
  if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
  return behaviour::cuArrayGetSparseProperties(properties, reinterpret_cast<CUarray>(mipmap->levels.front()));
}
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* needs, CUmipmappedArray handle,
                                               CUdevice) {
  const Lock lock(mutex());
  const Mipmap* const mipmap = live<Mipmap>(handle);
  if (!mipmap || !mipmap->levels.front()->mapped_later()) return CUDA_ERROR_INVALID_VALUE;
  *needs = {.size = mipmap->needs(), .alignment = page_bytes, .reserved = {}};
  return CUDA_SUCCESS;
}

// Of a sparse array it is all or nothing here.
CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned count, CUstream stream) {
  const Lock lock(mutex());
  if (!stream_lives(stream)) return CUDA_ERROR_INVALID_HANDLE;
  for (unsigned i = 0; i < count; ++i) {
    const CUarrayMapInfo& info = list[i];
    Array* array = info.resourceType == CU_RESOURCE_TYPE_ARRAY ? live<Array>(info.resource.array) : nullptr;
    if (info.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
      const Mipmap* const mipmap = live<Mipmap>(info.resource.mipmap);
      const unsigned level = info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL
                                 ? info.subresource.sparseLevel.level
                                 : 0;
      array = mipmap && level < mipmap->levels.size() ? mipmap->levels[level] : nullptr;
    }
    if (!array || !array->mapped_later() || info.deviceBitMask != 1) return CUDA_ERROR_INVALID_VALUE;
    const bool maps = info.memOperationType == CU_MEM_OPERATION_TYPE_MAP;
    array->mapped = maps ? keep_memory(info.memHandle.memHandle) : nullptr;
    if (maps && !array->mapped) return CUDA_ERROR_INVALID_VALUE;
    array->bytes.assign(maps ? array->row_bytes() * array->rows() * array->slices() : 0, std::byte{});
  }
  return CUDA_SUCCESS;
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* p, CUstream stream) {
  const Lock lock(mutex());
  if (const CUresult bad = usable(); bad != CUDA_SUCCESS) return bad;
  return copy_or_capture(*p, stream);
}

}  // namespace behaviour
}  // namespace fargpu::fake
