#include "driver/texture_objects.h"

#include <atomic>
#include <cmath>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "driver/context.h"
#include "driver/driver.h"
#include "driver/task.h"

namespace fargpu::softgpu {
namespace {

/// All texture and surface objects of the process. Never destroyed: kernels may still run at exit.
struct Objects {
  std::shared_mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<TextureObject>> by_handle;
  uint64_t next_handle = 1;
};

Objects& objects() {
  static auto* all = new Objects();
  return *all;
}

uint64_t add(std::shared_ptr<TextureObject> object) {
  Objects& all = objects();
  std::unique_lock lock(all.mutex);
  uint64_t handle = all.next_handle++;
  all.by_handle.emplace(handle, std::move(object));
  return handle;
}

Texture::Level level_of(const Array& array) {
  const CUDA_ARRAY3D_DESCRIPTOR& d = array.descriptor();
  return {.texels = array.row(0, 0),
          .row_bytes = array.row_bytes(),
          .slice_bytes = array.row_bytes() * array.rows(),
          .width = static_cast<uint32_t>(d.Width),
          .height = static_cast<uint32_t>(array.rows()),
          .depth = static_cast<uint32_t>(array.slices())};
}

void describe_array(const CUDA_ARRAY3D_DESCRIPTOR& d, Texture& texture) {
  texture.shape = Texture::Shape::array;
  bool is_layered = d.Flags & CUDA_ARRAY3D_LAYERED;
  texture.is_cubemap = d.Flags & CUDA_ARRAY3D_CUBEMAP;
  if (texture.is_cubemap) {
    texture.dimensions = 2;
    texture.layers = is_layered ? static_cast<uint32_t>(d.Depth) / 6 : 0;
  } else if (is_layered) {
    texture.dimensions = d.Height == 0 ? 1 : 2;
    texture.layers = static_cast<uint32_t>(d.Depth);
  } else {
    texture.dimensions = d.Depth != 0 ? 3 : d.Height != 0 ? 2 : 1;
  }
}

/// Memory of the device as one contiguous piece on the host.
std::byte* contiguous(DeviceAddress address, uint64_t bytes, std::shared_ptr<const void>& keep) {
  auto spans = addresses().spans(address, bytes);
  require(spans.has_value());
  // Several mappings side by side are rarely contiguous on the host.
  for (size_t i = 1; i < spans->size(); ++i)
    require((*spans)[i].host == (*spans)[i - 1].host + (*spans)[i - 1].bytes, CUDA_ERROR_NOT_SUPPORTED);
  keep = spans->front().range;
  return spans->front().host;
}

void take_resource(const CUDA_RESOURCE_DESC& resource, TextureObject& object) {
  Texture& texture = object.texture;
  require(resource.flags == 0);
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      auto array = ArrayTable::instance().get(resource.res.array.hArray);
      texture.format = array->format();
      texture.levels.push_back(level_of(*array));
      describe_array(array->descriptor(), texture);
      object.keep_alive = array;
      return;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      auto array = MipmappedArrayTable::instance().get(resource.res.mipmap.hMipmappedArray);
      for (const auto& level : array->levels()) texture.levels.push_back(level_of(*level));
      texture.format = array->levels().front()->format();
      describe_array(array->levels().front()->descriptor(), texture);
      object.keep_alive = array;
      return;
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      texture.shape = Texture::Shape::linear;
      texture.format = texel_format(linear.format, linear.numChannels);
      uint64_t texels = linear.sizeInBytes / texture.format.bytes();
      require(texels != 0 && texels <= uint64_t{1} << 28);
      require(linear.devPtr % 512 == 0 || linear.devPtr % texture.format.bytes() == 0);
      texture.levels.push_back({.texels = contiguous(linear.devPtr, linear.sizeInBytes, object.keep_alive),
                                .row_bytes = linear.sizeInBytes,
                                .slice_bytes = linear.sizeInBytes,
                                .width = static_cast<uint32_t>(texels)});
      return;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& pitched = resource.res.pitch2D;
      texture.shape = Texture::Shape::pitched;
      texture.dimensions = 2;
      texture.format = texel_format(pitched.format, pitched.numChannels);
      uint64_t row_bytes = pitched.width * texture.format.bytes();
      require(pitched.width != 0 && pitched.height != 0 && pitched.pitchInBytes >= row_bytes);
      require(pitched.pitchInBytes % 32 == 0);
      uint64_t bytes = pitched.pitchInBytes * (pitched.height - 1) + row_bytes;
      texture.levels.push_back({.texels = contiguous(pitched.devPtr, bytes, object.keep_alive),
                                .row_bytes = pitched.pitchInBytes,
                                .slice_bytes = bytes,
                                .width = static_cast<uint32_t>(pitched.width),
                                .height = static_cast<uint32_t>(pitched.height)});
      return;
    }
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
}

AddressMode address_mode(CUaddress_mode mode) {
  switch (mode) {
    case CU_TR_ADDRESS_MODE_WRAP: return AddressMode::wrap;
    case CU_TR_ADDRESS_MODE_CLAMP: return AddressMode::clamp;
    case CU_TR_ADDRESS_MODE_MIRROR: return AddressMode::mirror;
    case CU_TR_ADDRESS_MODE_BORDER: return AddressMode::border;
  }
  throw Failure(CUDA_ERROR_INVALID_VALUE);
}

void take_sampling(const CUDA_TEXTURE_DESC& sampling, Texture& texture) {
  texture.has_normalized_coordinates = sampling.flags & CU_TRSF_NORMALIZED_COORDINATES;
  texture.is_srgb = sampling.flags & CU_TRSF_SRGB;
  for (int i = 0; i < 3; ++i) {
    AddressMode mode = address_mode(sampling.addressMode[i]);
    // Wrapping and mirroring need to know where 1 is; without, coordinates are clamped.
    bool needs_normalized = mode == AddressMode::wrap || mode == AddressMode::mirror;
    if (needs_normalized && !texture.has_normalized_coordinates) mode = AddressMode::clamp;
    texture.address_mode[i] = mode;
  }
  require(sampling.filterMode == CU_TR_FILTER_MODE_POINT || sampling.filterMode == CU_TR_FILTER_MODE_LINEAR);
  texture.is_linear_filter = sampling.filterMode == CU_TR_FILTER_MODE_LINEAR;
  bool is_integer = texture.format.kind != TexelFormat::Kind::floating;
  // Integers of 32 bits are always read as they are.
  bool can_be_fraction = is_integer && texture.format.channel_bytes <= 2;
  texture.reads_as_float = can_be_fraction && !(sampling.flags & CU_TRSF_READ_AS_INTEGER);
  require(!texture.is_linear_filter || !is_integer || texture.reads_as_float);
  texture.has_linear_mip_filter = sampling.mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR;
  texture.mip_bias = sampling.mipmapLevelBias;
  texture.mip_min = sampling.minMipmapLevelClamp;
  texture.mip_max = sampling.maxMipmapLevelClamp;
  for (int i = 0; i < 4; ++i) texture.border_color[i] = sampling.borderColor[i];
}

}  // namespace

uint64_t make_texture(const Context& context, const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& sampling,
                      const CUDA_RESOURCE_VIEW_DESC* view) {
  auto object = std::make_shared<TextureObject>();
  object->context_id = context.id();
  object->resource = resource;
  object->sampling = sampling;
  if (view != nullptr) {
    // Views that read texels as another format or as part of an array are not simple.
    require(view->format == CU_RES_VIEW_FORMAT_NONE, CUDA_ERROR_NOT_SUPPORTED);
    object->view = *view;
    object->has_view = true;
  }
  take_resource(resource, *object);
  take_sampling(sampling, object->texture);
  return add(std::move(object));
}

uint64_t make_surface(const Context& context, const CUDA_RESOURCE_DESC& resource) {
  require(resource.resType == CU_RESOURCE_TYPE_ARRAY);
  auto object = std::make_shared<TextureObject>();
  object->context_id = context.id();
  object->resource = resource;
  take_resource(resource, *object);  // of any array, also of one that was not made for surfaces (measured; driver 580)
  object->texture.is_surface = true;
  return add(std::move(object));
}

std::shared_ptr<TextureObject> find_texture_object(uint64_t handle, bool is_surface) {
  Objects& all = objects();
  std::shared_lock lock(all.mutex);
  auto found = all.by_handle.find(handle);
  if (found == all.by_handle.end() || found->second->texture.is_surface != is_surface || found->second->is_destroyed)
    return nullptr;
  return found->second;
}

bool remove_texture(uint64_t handle, bool is_surface) {
  std::shared_ptr<TextureObject> object = find_texture_object(handle, is_surface);
  if (object == nullptr) return false;
  Objects& all = objects();
  {
    std::unique_lock lock(all.mutex);
    if (std::exchange(object->is_destroyed, true)) return false;
  }
  auto removal = std::make_shared<FunctionTask>(FunctionTask::Place::inline_on_completion, [=, &all] {
    std::unique_lock lock(all.mutex);
    all.by_handle.erase(handle);
  });
  if (auto context = ContextTable::instance().find(context_of_id(object->context_id)))
    for (const auto& task : context->everything()) removal->depend_on(task);
  removal->submit();
  return true;
}

void remove_textures_of(const Context& context) {
  Objects& all = objects();
  std::unique_lock lock(all.mutex);
  std::erase_if(all.by_handle, [&](const auto& entry) { return entry.second->context_id == context.id(); });
}

const Texture* texture_of(uint64_t handle) {
  Objects& all = objects();
  std::shared_lock lock(all.mutex);
  auto found = all.by_handle.find(handle);
  return found == all.by_handle.end() ? nullptr : &found->second->texture;
}

}  // namespace fargpu::softgpu
