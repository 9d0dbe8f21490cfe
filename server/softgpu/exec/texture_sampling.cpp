#include "exec/texture_sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "exec/float_format.h"

namespace fargpu::softgpu {
namespace {

using Color = std::array<float, 4>;

uint32_t raw_channel(const std::byte* texel, const TexelFormat& format, int channel) {
  const std::byte* from = texel + channel * format.channel_bytes;
  if (format.channel_bytes == 1) return static_cast<uint8_t>(*from);
  uint32_t bits = 0;
  std::memcpy(&bits, from, format.channel_bytes == 2 ? 2 : 4);
  return bits;
}

/// One channel as a number: floating point as it is, integers as fractions of their range.
float channel_as_float(uint32_t bits, const TexelFormat& format, bool is_srgb) {
  int width = 8 * format.channel_bytes;
  switch (format.kind) {
    case TexelFormat::Kind::floating:
      if (format.channel_bytes == 2) return static_cast<float>(to_double(Half{static_cast<uint16_t>(bits)}));
      return std::bit_cast<float>(bits);
    case TexelFormat::Kind::unsigned_integer: {
      float fraction = static_cast<float>(bits) / static_cast<float>((uint64_t{1} << width) - 1);
      if (!is_srgb) return fraction;
      return fraction <= 0.04045f ? fraction / 12.92f : std::pow((fraction + 0.055f) / 1.055f, 2.4f);
    }
    case TexelFormat::Kind::signed_integer: {
      int32_t value = static_cast<int32_t>(bits << (32 - width)) >> (32 - width);
      float most = static_cast<float>((uint64_t{1} << (width - 1)) - 1);
      return std::max(static_cast<float>(value) / most, -1.0f);
    }
  }
  return 0;
}

uint32_t channel_as_integer(uint32_t bits, const TexelFormat& format) {
  int width = 8 * format.channel_bytes;
  if (format.kind == TexelFormat::Kind::signed_integer && width < 32)
    return static_cast<uint32_t>(static_cast<int32_t>(bits << (32 - width)) >> (32 - width));
  return bits;
}

bool gives_float(const Texture& texture) {
  return texture.format.kind == TexelFormat::Kind::floating || texture.reads_as_float;
}

Color color_of(const Texture& texture, const std::byte* texel) {
  Color color = {};
  for (int i = 0; i < texture.format.channel_count; ++i)
    color[i] = channel_as_float(raw_channel(texel, texture.format, i), texture.format, texture.is_srgb && i < 3);
  return color;
}

TexelBits bits_of(const Color& color) {
  TexelBits bits;
  for (int i = 0; i < 4; ++i) bits[i] = std::bit_cast<uint32_t>(color[i]);
  return bits;
}

TexelBits texel_bits(const Texture& texture, const std::byte* texel) {
  if (gives_float(texture)) return bits_of(color_of(texture, texel));
  TexelBits bits = {};
  for (int i = 0; i < texture.format.channel_count; ++i)
    bits[i] = channel_as_integer(raw_channel(texel, texture.format, i), texture.format);
  return bits;
}

TexelBits border_bits(const Texture& texture) {
  if (gives_float(texture))
    return bits_of(
        {texture.border_color[0], texture.border_color[1], texture.border_color[2], texture.border_color[3]});
  TexelBits bits;
  for (int i = 0; i < 4; ++i) bits[i] = static_cast<uint32_t>(texture.border_color[i]);
  return bits;
}

// ---- addressing (CUDA C++ programming guide, texture fetching) -----------------------------------------------------

/// Brings an index of texels into range; nothing where the border color is.
std::optional<int64_t> resolve(int64_t index, int64_t extent, AddressMode mode) {
  if (index >= 0 && index < extent) return index;
  switch (mode) {
    case AddressMode::clamp: return std::clamp<int64_t>(index, 0, extent - 1);
    case AddressMode::border: return std::nullopt;
    case AddressMode::wrap: {
      int64_t rest = index % extent;
      return rest < 0 ? rest + extent : rest;
    }
    case AddressMode::mirror: {
      int64_t period = 2 * extent;
      int64_t rest = index % period;
      if (rest < 0) rest += period;
      return rest < extent ? rest : period - 1 - rest;
    }
  }
  return std::nullopt;
}

/// A coordinate in texels, kept within what integers hold. NaN counts as zero.
float in_texels(float coordinate, const Texture& texture, uint32_t extent) {
  constexpr float most = 1 << 24;
  if (coordinate != coordinate) return 0;
  float texels = texture.has_normalized_coordinates ? coordinate * static_cast<float>(extent) : coordinate;
  return std::clamp(texels, -most, most);
}

/// The whole number below a coordinate in texels; faster than the library's for any x86-64.
int64_t whole_below(float texels) {
  auto whole = static_cast<int64_t>(texels);
  return whole - (static_cast<float>(whole) > texels);
}

uint32_t extent_of(const Texture::Level& level, int dimension) {
  return dimension == 0 ? level.width : dimension == 1 ? level.height : level.depth;
}

const std::byte* texel_at(const Texture& texture, const Texture::Level& level, int64_t x, int64_t y, int64_t z) {
  return level.texels + z * static_cast<int64_t>(level.slice_bytes) + y * static_cast<int64_t>(level.row_bytes) +
         x * texture.format.bytes();
}

/// Slice of an array that a layer, or face of a cube, is in.
int64_t slice_of(const Texture& texture, int32_t layer, int face) {
  int64_t slice = texture.layers != 0 ? std::clamp<int64_t>(layer, 0, static_cast<int64_t>(texture.layers) - 1) : 0;
  return texture.is_cubemap ? slice * 6 + face : slice;
}

struct Neighbour {
  int64_t index[2];
  float weight;  // of the second
};

/// The two texels a linear look-up is between in one dimension. The weight has 8 bits, as in the
/// hardware's fixed-point format.
Neighbour neighbours(float texels) {
  float below = texels - 0.5f;
  int64_t first = whole_below(below);
  float fraction = below - static_cast<float>(first);
  fraction = static_cast<float>(static_cast<int>(fraction * 256.0f + 0.5f)) / 256.0f;
  return {{first, first + 1}, fraction};
}

/// Face of a cube and the place on it, from 0 to 1, that a direction points to.
struct FacePosition {
  int face;
  float s, t;
};

FacePosition face_of(float x, float y, float z) {
  float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
  int face;
  float s, t, m;
  if (ax >= ay && ax >= az) {
    face = x >= 0 ? 0 : 1;
    s = x >= 0 ? -z : z;
    t = -y;
    m = ax;
  } else if (ay >= az) {
    face = y >= 0 ? 2 : 3;
    s = x;
    t = y >= 0 ? z : -z;
    m = ay;
  } else {
    face = z >= 0 ? 4 : 5;
    s = z >= 0 ? x : -x;
    t = -y;
    m = az;
  }
  if (m == 0) m = 1;
  return {face, (s / m + 1) / 2, (t / m + 1) / 2};
}

/// A look-up in one level of detail, with cubes already resolved to a face.
struct LevelLookup {
  const Texture& texture;
  const Texture::Level& level;
  std::array<float, 3> texels;  // coordinates in texels
  int64_t slice;                // for layers and faces

  /// The texel at integer coordinates; null at the border.
  const std::byte* at(int64_t x, int64_t y, int64_t z) const {
    int64_t index[3] = {x, y, z};
    for (uint32_t d = 0; d < 3; ++d) {
      if (d >= texture.dimensions) {
        index[d] = 0;
        continue;
      }
      AddressMode mode = texture.is_cubemap ? AddressMode::clamp : texture.address_mode[d];
      auto resolved = resolve(index[d], extent_of(level, static_cast<int>(d)), mode);
      if (!resolved) return nullptr;
      index[d] = *resolved;
    }
    bool has_slices = texture.layers != 0 || texture.is_cubemap;
    return texel_at(texture, level, index[0], index[1], has_slices ? slice : index[2]);
  }

  TexelBits nearest() const {
    auto index = [&](uint32_t d) { return d < texture.dimensions ? whole_below(texels[d]) : 0; };
    const std::byte* texel = at(index(0), index(1), index(2));
    return texel != nullptr ? texel_bits(texture, texel) : border_bits(texture);
  }

  Color linear() const {
    Neighbour n[3];
    for (uint32_t d = 0; d < 3; ++d) n[d] = d < texture.dimensions ? neighbours(texels[d]) : Neighbour{{0, 0}, 0.0f};
    Color sum = {};
    int corners = 1 << texture.dimensions;
    for (int corner = 0; corner < corners; ++corner) {
      float weight = 1;
      int64_t index[3];
      for (int d = 0; d < 3; ++d) {
        bool second = corner >> d & 1;
        index[d] = n[d].index[second];
        if (d < static_cast<int>(texture.dimensions)) weight *= second ? n[d].weight : 1 - n[d].weight;
      }
      if (weight == 0) continue;
      const std::byte* texel = at(index[0], index[1], index[2]);
      Color color = texel != nullptr ? color_of(texture, texel)
                                     : Color{texture.border_color[0], texture.border_color[1], texture.border_color[2],
                                             texture.border_color[3]};
      for (int i = 0; i < 4; ++i) sum[i] += weight * color[i];
    }
    return sum;
  }
};

LevelLookup prepare(const Texture& texture, size_t level_index, const TexturePosition& position) {
  const Texture::Level& level = texture.levels[level_index];
  LevelLookup lookup = {texture, level, {}, 0};
  if (!texture.is_cubemap) {
    for (uint32_t d = 0; d < texture.dimensions; ++d)
      lookup.texels[d] = in_texels(position.coordinate[d], texture, extent_of(level, static_cast<int>(d)));
    lookup.slice = slice_of(texture, position.layer, 0);
    return lookup;
  }
  FacePosition place = face_of(position.coordinate[0], position.coordinate[1], position.coordinate[2]);
  lookup.texels[0] = place.s * static_cast<float>(level.width);
  lookup.texels[1] = place.t * static_cast<float>(level.height);
  lookup.slice = slice_of(texture, position.layer, place.face);
  return lookup;
}

TexelBits sample_level(const Texture& texture, size_t level, const TexturePosition& position) {
  LevelLookup lookup = prepare(texture, level, position);
  bool filters = texture.is_linear_filter && gives_float(texture);
  return filters ? bits_of(lookup.linear()) : lookup.nearest();
}

}  // namespace

TexelBits sample(const Texture& texture, const TexturePosition& position) {
  if (texture.shape == Texture::Shape::linear) {
    // Linear memory is never filtered.
    auto texel = static_cast<int32_t>(whole_below(in_texels(position.coordinate[0], texture, texture.levels[0].width)));
    return fetch(texture, {texel, 0, 0}, 0, 0);
  }
  if (texture.levels.size() == 1) return sample_level(texture, 0, position);
  float last = static_cast<float>(texture.levels.size() - 1);
  float most = std::min(last, texture.mip_max);
  float level = std::clamp(position.level + texture.mip_bias, std::min(texture.mip_min, most), most);
  if (!texture.has_linear_mip_filter || !gives_float(texture))
    return sample_level(texture, static_cast<size_t>(level + 0.5f), position);
  auto first = static_cast<size_t>(level);
  float weight = std::round((level - static_cast<float>(first)) * 256.0f) / 256.0f;
  TexelBits a = sample_level(texture, first, position);
  if (weight == 0) return a;
  TexelBits b = sample_level(texture, std::min(first + 1, texture.levels.size() - 1), position);
  for (int i = 0; i < 4; ++i)
    a[i] = std::bit_cast<uint32_t>((1 - weight) * std::bit_cast<float>(a[i]) + weight * std::bit_cast<float>(b[i]));
  return a;
}

TexelBits fetch(const Texture& texture, const std::array<int32_t, 3>& texel, int32_t layer, int32_t level_index) {
  size_t chosen =
      static_cast<size_t>(std::clamp<int64_t>(level_index, 0, static_cast<int64_t>(texture.levels.size()) - 1));
  const Texture::Level& level = texture.levels[chosen];
  int64_t index[3] = {texel[0], texel[1], texel[2]};
  for (uint32_t d = 0; d < 3; ++d) {
    if (d >= texture.dimensions) {
      index[d] = 0;
      continue;
    }
    int64_t extent = extent_of(level, static_cast<int>(d));
    bool is_outside = index[d] < 0 || index[d] >= extent;
    if (!is_outside) continue;
    // Outside linear memory there is nothing; elsewhere integer coordinates are clamped.
    if (texture.shape == Texture::Shape::linear || texture.address_mode[d] == AddressMode::border)
      return texture.shape == Texture::Shape::linear ? TexelBits{} : border_bits(texture);
    index[d] = std::clamp<int64_t>(index[d], 0, extent - 1);
  }
  if (texture.layers != 0) index[2] = slice_of(texture, layer, 0);
  return texel_bits(texture, texel_at(texture, level, index[0], index[1], index[2]));
}

TexelBits gather(const Texture& texture, const TexturePosition& position, int component) {
  LevelLookup lookup = prepare(texture, 0, position);
  Neighbour x = neighbours(lookup.texels[0]), y = neighbours(lookup.texels[1]);
  // Counter-clockwise from the lower left.
  const int order[4][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
  TexelBits result;
  for (int i = 0; i < 4; ++i) {
    const std::byte* texel = lookup.at(x.index[order[i][0]], y.index[order[i][1]], 0);
    TexelBits bits = texel != nullptr ? texel_bits(texture, texel) : border_bits(texture);
    result[i] = bits[static_cast<size_t>(component)];
  }
  return result;
}

float level_of_gradients(const Texture& texture, const std::array<float, 3>& dx, const std::array<float, 3>& dy) {
  auto length = [&](const std::array<float, 3>& change) {
    float sum = 0;
    for (uint32_t d = 0; d < texture.dimensions; ++d) {
      float scale = texture.has_normalized_coordinates
                        ? static_cast<float>(extent_of(texture.levels[0], static_cast<int>(d)))
                        : 1.0f;
      sum += change[d] * scale * (change[d] * scale);
    }
    return std::sqrt(sum);
  };
  float largest = std::max(length(dx), length(dy));
  return largest > 0 ? std::log2(largest) : 0.0f;
}

std::byte* surface_texel(const Texture& surface, int32_t x_bytes, int32_t y, int32_t z, uint32_t bytes) {
  const Texture::Level& level = surface.levels[0];
  bool is_inside = x_bytes >= 0 && y >= 0 && z >= 0 &&
                   static_cast<uint64_t>(x_bytes) + bytes <= uint64_t{level.width} * surface.format.bytes() &&
                   static_cast<uint32_t>(y) < level.height && static_cast<uint32_t>(z) < level.depth;
  if (!is_inside) return nullptr;
  return level.texels + static_cast<uint64_t>(z) * level.slice_bytes + static_cast<uint64_t>(y) * level.row_bytes +
         x_bytes;
}

std::byte* clamped_surface_texel(const Texture& surface, int32_t x_bytes, int32_t y, int32_t z, uint32_t bytes) {
  const Texture::Level& level = surface.levels[0];
  int64_t row = static_cast<int64_t>(level.width) * surface.format.bytes();
  auto x = static_cast<int32_t>(std::clamp<int64_t>(x_bytes, 0, row - bytes));
  y = std::clamp(y, 0, static_cast<int32_t>(level.height) - 1);
  z = std::clamp(z, 0, static_cast<int32_t>(level.depth) - 1);
  return surface_texel(surface, x, y, z, bytes);
}

}  // namespace fargpu::softgpu
