#pragma once

#include <array>
#include <cstdint>

#include "exec/texture.h"

namespace fargpu::softgpu {

/// The four components of a texel as registers receive them: numbers, or integers as bits.
using TexelBits = std::array<uint32_t, 4>;

/// Where to look a texture up (PTX ISA 9.7.10). Coordinates beyond the dimensions are ignored.
struct TexturePosition {
  std::array<float, 3> coordinate = {};
  int32_t layer = 0;
  float level = 0;  // of detail
};

/// Filtered look-up with floating-point coordinates.
TexelBits sample(const Texture& texture, const TexturePosition& position);
/// Texel at an integer position, without filtering.
TexelBits fetch(const Texture& texture, const std::array<int32_t, 3>& texel, int32_t layer, int32_t level);
/// One component of each of the four texels that a linear look-up would use (tld4).
TexelBits gather(const Texture& texture, const TexturePosition& position, int component);
/// The level of detail for given changes of the coordinates to the neighbouring lanes.
float level_of_gradients(const Texture& texture, const std::array<float, 3>& dx, const std::array<float, 3>& dy);

/// The address of a texel of a surface; null if it is outside. `x_bytes` counts bytes.
std::byte* surface_texel(const Texture& surface, int32_t x_bytes, int32_t y, int32_t z, uint32_t bytes);
/// The address of the nearest texel inside a surface.
std::byte* clamped_surface_texel(const Texture& surface, int32_t x_bytes, int32_t y, int32_t z, uint32_t bytes);

}  // namespace fargpu::softgpu
