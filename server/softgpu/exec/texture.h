#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fargpu::softgpu {

/// How one texel is kept.
struct TexelFormat {
  enum class Kind : uint8_t { unsigned_integer, signed_integer, floating };
  Kind kind = Kind::floating;
  uint8_t channel_bytes = 4;
  uint8_t channel_count = 1;
  uint32_t bytes() const { return uint32_t{channel_bytes} * channel_count; }
};

enum class AddressMode : uint8_t { wrap, clamp, mirror, border };

/// Texels in memory, and how they are looked up: a texture or surface object (CUDA C++ programming
/// guide, texture fetching).
struct Texture {
  enum class Shape : uint8_t { linear, pitched, array };

  /// One level of detail.
  struct Level {
    std::byte* texels = nullptr;
    uint64_t row_bytes = 0;
    uint64_t slice_bytes = 0;
    uint32_t width = 0;
    uint32_t height = 1;  // 1 for one dimension
    uint32_t depth = 1;   // slices of 3D textures
  };

  Shape shape = Shape::array;
  TexelFormat format;
  std::vector<Level> levels;  // never empty
  uint32_t dimensions = 1;    // 1, 2 or 3, without layers
  uint32_t layers = 0;        // 0: not layered
  bool is_cubemap = false;

  AddressMode address_mode[3] = {AddressMode::clamp, AddressMode::clamp, AddressMode::clamp};
  bool is_linear_filter = false;
  bool reads_as_float = false;  // integers as fractions of their range
  bool has_normalized_coordinates = false;
  bool is_srgb = false;
  bool has_linear_mip_filter = false;
  float mip_bias = 0;
  float mip_min = 0;
  float mip_max = 0;
  float border_color[4] = {};
  bool is_surface = false;
};

}  // namespace fargpu::softgpu
