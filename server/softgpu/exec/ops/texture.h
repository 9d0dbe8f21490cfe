#pragma once

#include <cstdint>

#include "exec/instruction.h"

// Texture and surface instructions (PTX ISA 9.7.10 and 9.7.11). Operands and the form are in
// MoreOperands.

namespace fargpu::softgpu::ops {

enum class TextureMode : uint8_t { plain, level, gradient, gather };

struct TextureForm {
  TextureMode mode = TextureMode::plain;
  uint8_t dimensions = 2;  // of coordinates: 3 for cubes
  bool is_layered = false;
  bool has_integer_coordinates = false;
  bool gives_half = false;  // results are f16
  uint8_t result_count = 4;
  uint8_t component = 0;  // for gather
};
/// Operands: results, handle, layer if any, coordinates, level or gradients if any.
Handler texture();

enum class SurfaceBounds : uint8_t { trap, clamp, zero };

struct SurfaceForm {
  bool is_store = false;
  uint8_t dimensions = 2;
  bool is_layered = false;
  uint8_t element_bytes = 4;
  uint8_t register_bytes = 4;
  uint8_t count = 1;
  bool is_formatted = false;  // sust.p converts to the format of the surface
  SurfaceBounds bounds = SurfaceBounds::trap;
};
/// Operands: results (loads), handle, layer if any, coordinates, sources (stores).
Handler surface();

enum class TextureQuery { width, height, depth, channel_type, channel_order, normalized, array_size, mipmap_levels };
/// Operands: result, handle; immediate: TextureQuery.
Handler query_texture();

}  // namespace fargpu::softgpu::ops
