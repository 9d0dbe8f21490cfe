// Texture and surface objects and references of the fake driver: they remember what they were told, and nothing samples
// them.

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "objects.h"

namespace fargpu::fake {
namespace {

struct Object {
  bool surface = false;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC texture{};
  CUDA_RESOURCE_VIEW_DESC view{};
  bool has_view = false;
};

// By the value that kernels would see: small numbers, as the driver's are, and equal ones in each context.
using Key = std::pair<CUcontext, unsigned long long>;
std::map<Key, Object>& all_objects() {
  static std::map<Key, Object> all;
  return all;
}

Object* find(unsigned long long value, bool surface) {
  const auto found = all_objects().find({current_context(), value});
  return found != all_objects().end() && found->second.surface == surface ? &found->second : nullptr;
}

struct Reference {
  CUarray array = nullptr;
  CUmipmappedArray mipmap = nullptr;
  CUdeviceptr address = 0;
  CUarray_format format = CU_AD_FORMAT_UNSIGNED_INT8;
  int channels = 1;
  CUaddress_mode address_mode[3] = {};
  CUfilter_mode filter = CU_TR_FILTER_MODE_POINT;
  CUfilter_mode mipmap_filter = CU_TR_FILTER_MODE_POINT;
  float bias = 0, least_level = 0, most_level = 0;
  float border[4] = {};
  unsigned anisotropy = 1;
  unsigned flags = 0;
};

Reference* reference(const void* handle) { return live<Reference>(handle); }

// Of any module: one for each name that is asked for and does not begin with "no".
CUresult reference_of_module(const void* module, const char* name, void** out) {
  static std::map<std::pair<const void*, std::string>, Reference*> known;
  if (!objects().contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  if (std::strncmp(name, "no", 2) == 0) return CUDA_ERROR_NOT_FOUND;
  Reference*& found = known[{module, name}];
  if (!found) found = make<Reference>();
  *out = found;
  return CUDA_SUCCESS;
}

CUresult check_resource(const CUDA_RESOURCE_DESC& resource) {
  bool there = false;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: there = objects().contains(resource.res.array.hArray); break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: there = objects().contains(resource.res.mipmap.hMipmappedArray); break;
    case CU_RESOURCE_TYPE_LINEAR:
      there = translate(resource.res.linear.devPtr, resource.res.linear.sizeInBytes) != nullptr;
      break;
    case CU_RESOURCE_TYPE_PITCH2D:
      there = translate(resource.res.pitch2D.devPtr, resource.res.pitch2D.pitchInBytes) != nullptr;
      break;
  }
  return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

unsigned long long add(const Object& object) {
  static std::map<CUcontext, unsigned long long> last;
  const Key key{current_context(), ++last[current_context()]};
  all_objects()[key] = object;
  return key.second;
}

}  // namespace

void drop_textures(CUcontext context) {
  std::erase_if(all_objects(), [&](const auto& entry) { return entry.first.first == context; });
}

namespace behaviour {

CUresult cuTexObjectCreate(CUtexObject* out, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* texture,
                           const CUDA_RESOURCE_VIEW_DESC* view) {
  const Lock lock(mutex());
  if (const CUresult bad = check_resource(*resource); bad != CUDA_SUCCESS) return bad;
  Object object{.resource = *resource, .texture = *texture, .has_view = view != nullptr};
  if (view) object.view = *view;
  *out = add(object);
  return CUDA_SUCCESS;
}
CUresult cuTexObjectDestroy(CUtexObject value) {
  const Lock lock(mutex());
  if (!find(value, false)) return CUDA_ERROR_INVALID_VALUE;
  all_objects().erase({current_context(), value});
  return CUDA_SUCCESS;
}
CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUtexObject value) {
  const Lock lock(mutex());
  const Object* const object = find(value, false);
  if (!object) return CUDA_ERROR_INVALID_VALUE;
  *out = object->resource;
  return CUDA_SUCCESS;
}
CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* out, CUtexObject value) {
  const Lock lock(mutex());
  const Object* const object = find(value, false);
  if (!object) return CUDA_ERROR_INVALID_VALUE;
  *out = object->texture;
  return CUDA_SUCCESS;
}
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* out, CUtexObject value) {
  const Lock lock(mutex());
  const Object* const object = find(value, false);
  if (!object || !object->has_view) return CUDA_ERROR_INVALID_VALUE;
  *out = object->view;
  return CUDA_SUCCESS;
}
CUresult cuSurfObjectCreate(CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
  const Lock lock(mutex());
  if (resource->resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_resource(*resource); bad != CUDA_SUCCESS) return bad;
  *out = add({.surface = true, .resource = *resource});
  return CUDA_SUCCESS;
}
CUresult cuSurfObjectDestroy(CUsurfObject value) {
  const Lock lock(mutex());
  if (!find(value, true)) return CUDA_ERROR_INVALID_VALUE;
  all_objects().erase({current_context(), value});
  return CUDA_SUCCESS;
}
CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject value) {
  const Lock lock(mutex());
  const Object* const object = find(value, true);
  if (!object) return CUDA_ERROR_INVALID_VALUE;
  *out = object->resource;
  return CUDA_SUCCESS;
}

CUresult cuTexRefCreate(CUtexref* out) {
  const Lock lock(mutex());
  *out = reinterpret_cast<CUtexref>(make<Reference>());
  return CUDA_SUCCESS;
}
CUresult cuTexRefDestroy(CUtexref handle) {
  const Lock lock(mutex());
  return destroy<Reference>(handle);
}
CUresult cuModuleGetTexRef(CUtexref* out, CUmodule module, const char* name) {
  const Lock lock(mutex());
  return reference_of_module(module, name, reinterpret_cast<void**>(out));
}
CUresult cuModuleGetSurfRef(CUsurfref* out, CUmodule module, const char* name) {
  const Lock lock(mutex());
  return reference_of_module(module, name, reinterpret_cast<void**>(out));
}
CUresult cuTexRefSetArray(CUtexref handle, CUarray array, unsigned) {
  const Lock lock(mutex());
  *reference(handle) = {};
  reference(handle)->array = array;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetMipmappedArray(CUtexref handle, CUmipmappedArray mipmap, unsigned) {
  const Lock lock(mutex());
  *reference(handle) = {};
  reference(handle)->mipmap = mipmap;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetAddress_v2(std::size_t* offset, CUtexref handle, CUdeviceptr address, std::size_t) {
  const Lock lock(mutex());
  reference(handle)->address = address / 512 * 512;
  if (offset) *offset = address % 512;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetAddress2D_v3(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* description, CUdeviceptr address,
                                 std::size_t) {
  const Lock lock(mutex());
  reference(handle)->address = address;
  reference(handle)->format = description->Format;
  reference(handle)->channels = static_cast<int>(description->NumChannels);
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetAddress2D_v2(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* description, CUdeviceptr address,
                                 std::size_t pitch) {
  return behaviour::cuTexRefSetAddress2D_v3(handle, description, address, pitch);
}
CUresult cuTexRefSetFormat(CUtexref handle, CUarray_format format, int channels) {
  reference(handle)->format = format;
  reference(handle)->channels = channels;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetAddressMode(CUtexref handle, int dimension, CUaddress_mode mode) {
  if (dimension < 0 || dimension > 2) return CUDA_ERROR_INVALID_VALUE;
  reference(handle)->address_mode[dimension] = mode;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetFilterMode(CUtexref handle, CUfilter_mode mode) {
  reference(handle)->filter = mode;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetMipmapFilterMode(CUtexref handle, CUfilter_mode mode) {
  reference(handle)->mipmap_filter = mode;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetMipmapLevelBias(CUtexref handle, float bias) {
  reference(handle)->bias = bias;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetMipmapLevelClamp(CUtexref handle, float least, float most) {
  reference(handle)->least_level = least;
  reference(handle)->most_level = most;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetMaxAnisotropy(CUtexref handle, unsigned anisotropy) {
  reference(handle)->anisotropy = anisotropy;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetBorderColor(CUtexref handle, float* color) {
  std::memcpy(reference(handle)->border, color, sizeof(Reference::border));
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetFlags(CUtexref handle, unsigned flags) {
  reference(handle)->flags = flags;
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetAddress_v2(CUdeviceptr* out, CUtexref handle) {
  *out = reference(handle)->address;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuTexRefGetArray(CUarray* out, CUtexref handle) {
  *out = reference(handle)->array;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuTexRefGetMipmappedArray(CUmipmappedArray* out, CUtexref handle) {
  *out = reference(handle)->mipmap;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuTexRefGetAddressMode(CUaddress_mode* out, CUtexref handle, int dimension) {
  if (dimension < 0 || dimension > 2) return CUDA_ERROR_INVALID_VALUE;
  *out = reference(handle)->address_mode[dimension];
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetFilterMode(CUfilter_mode* out, CUtexref handle) {
  *out = reference(handle)->filter;
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetFormat(CUarray_format* format, int* channels, CUtexref handle) {
  *format = reference(handle)->format;
  *channels = reference(handle)->channels;
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetMipmapFilterMode(CUfilter_mode* out, CUtexref handle) {
  *out = reference(handle)->mipmap_filter;
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetMipmapLevelBias(float* out, CUtexref handle) {
  *out = reference(handle)->bias;
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetMipmapLevelClamp(float* least, float* most, CUtexref handle) {
  *least = reference(handle)->least_level;
  *most = reference(handle)->most_level;
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetMaxAnisotropy(int* out, CUtexref handle) {
  *out = static_cast<int>(reference(handle)->anisotropy);
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetBorderColor(float* out, CUtexref handle) {
  std::memcpy(out, reference(handle)->border, sizeof(Reference::border));
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetFlags(unsigned* out, CUtexref handle) {
  *out = reference(handle)->flags;
  return CUDA_SUCCESS;
}
CUresult cuSurfRefSetArray(CUsurfref handle, CUarray array, unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  reference(handle)->array = array;
  return CUDA_SUCCESS;
}
CUresult cuSurfRefGetArray(CUarray* out, CUsurfref handle) {
  *out = reference(handle)->array;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace behaviour
}  // namespace fargpu::fake
