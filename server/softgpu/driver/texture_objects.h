#pragma once

#include <cuda.h>

#include <memory>

#include "driver/array.h"
#include "exec/texture.h"

namespace fargpu::softgpu {

class Context;

/// A texture or surface object with the descriptors it was made from. Its handle is what kernels
/// are given.
struct TextureObject {
  Texture texture;
  CUDA_RESOURCE_DESC resource = {};
  CUDA_TEXTURE_DESC sampling = {};
  CUDA_RESOURCE_VIEW_DESC view = {};
  bool has_view = false;
  uint64_t context_id = 0;
  bool is_destroyed = false;               // only kernels that were launched before find it
  std::shared_ptr<const void> keep_alive;  // the array it reads
};

/// Throws INVALID_VALUE, INVALID_HANDLE or NOT_SUPPORTED.
uint64_t make_texture(const Context& context, const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& sampling,
                      const CUDA_RESOURCE_VIEW_DESC* view);
uint64_t make_surface(const Context& context, const CUDA_RESOURCE_DESC& resource);
/// Null if there is no such object.
std::shared_ptr<TextureObject> find_texture_object(uint64_t handle, bool is_surface);
/// The program lets go of it, as it may before the kernels that it launched have run.
bool remove_texture(uint64_t handle, bool is_surface);
void remove_textures_of(const Context& context);

/// For kernels.
const Texture* texture_of(uint64_t handle);

}  // namespace fargpu::softgpu
