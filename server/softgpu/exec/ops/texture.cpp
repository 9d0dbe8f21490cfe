#include "exec/ops/texture.h"

#include <bit>
#include <cstring>

#include "exec/float_format.h"
#include "exec/launch.h"
#include "exec/routine.h"
#include "exec/texture_sampling.h"
#include "exec/warp.h"

namespace fargpu::softgpu::ops {
namespace {

/// Finds textures or surfaces by handle, for lanes that mostly name the same one.
class Finder {
 public:
  Finder(Warp& warp, const Instruction& at, bool wants_surface) : warp_(warp), at_(at), wants_surface_(wants_surface) {}

  /// Null after raising a fault.
  const Texture* find(int lane, uint64_t handle) {
    if (last_ != nullptr && handle == last_handle_) return last_;
    last_handle_ = handle;
    last_ = warp_.launch->services->find_texture(handle);
    if (last_ != nullptr && last_->is_surface == wants_surface_) return last_;
    last_ = nullptr;
    warp_.raise(FaultKind::illegal_address, at_, lane,
                wants_surface_ ? "no surface object has this handle" : "no texture object has this handle");
    return nullptr;
  }

 private:
  Warp& warp_;
  const Instruction& at_;
  const bool wants_surface_;
  uint64_t last_handle_ = 0;
  const Texture* last_ = nullptr;
};

/// Reads operands of the instruction one after the other.
class OperandReader {
 public:
  OperandReader(Warp& warp, const MoreOperands& more, size_t first) : warp_(warp), more_(more), next_(first) {}
  template <class T>
  T next(int lane) {
    return warp_.lanes<T>(more_.operands[next_++])[lane];
  }

 private:
  Warp& warp_;
  const MoreOperands& more_;
  size_t next_;
};

const Instruction* run_texture(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  auto& more = *static_cast<const MoreOperands*>(instruction.details);
  auto& form = *static_cast<const TextureForm*>(more.details.get());
  Finder finder(warp, instruction, /*wants_surface=*/false);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    OperandReader reader(warp, more, form.result_count);
    const Texture* texture = finder.find(lane, reader.next<uint64_t>(lane));
    if (texture == nullptr) return nullptr;
    TexturePosition position;
    std::array<int32_t, 3> texel = {};
    if (form.is_layered) position.layer = reader.next<int32_t>(lane);
    for (int d = 0; d < form.dimensions; ++d) {
      if (form.has_integer_coordinates) texel[d] = reader.next<int32_t>(lane);
      else position.coordinate[d] = reader.next<float>(lane);
    }
    TexelBits bits;
    if (form.has_integer_coordinates) {
      int32_t level = form.mode == TextureMode::level ? reader.next<int32_t>(lane) : 0;
      bits = fetch(*texture, texel, position.layer, level);
    } else if (form.mode == TextureMode::gather) {
      bits = gather(*texture, position, form.component);
    } else {
      if (form.mode == TextureMode::level) position.level = reader.next<float>(lane);
      if (form.mode == TextureMode::gradient) {
        std::array<float, 3> dx = {}, dy = {};
        for (int d = 0; d < form.dimensions; ++d) dx[d] = reader.next<float>(lane);
        for (int d = 0; d < form.dimensions; ++d) dy[d] = reader.next<float>(lane);
        position.level = level_of_gradients(*texture, dx, dy);
      }
      bits = sample(*texture, position);
    }
    for (int i = 0; i < form.result_count; ++i) {
      if (form.gives_half)
        warp.lanes<uint16_t>(more.operands[i])[lane] = round_to<Half>(std::bit_cast<float>(bits[i])).bits;
      else warp.lanes<uint32_t>(more.operands[i])[lane] = bits[i];
    }
  }
  return &instruction + 1;
}

template <class T>
uint64_t widen(Warp& warp, OperandRef operand, int lane) {
  return warp.lanes<T>(operand)[lane];
}

uint64_t read_register(Warp& warp, OperandRef operand, uint32_t bytes, int lane) {
  switch (bytes) {
    case 1: return widen<uint8_t>(warp, operand, lane);
    case 2: return widen<uint16_t>(warp, operand, lane);
    case 4: return widen<uint32_t>(warp, operand, lane);
    default: return widen<uint64_t>(warp, operand, lane);
  }
}

void write_register(Warp& warp, OperandRef operand, uint32_t bytes, int lane, uint64_t value) {
  switch (bytes) {
    case 1: warp.lanes<uint8_t>(operand)[lane] = static_cast<uint8_t>(value); return;
    case 2: warp.lanes<uint16_t>(operand)[lane] = static_cast<uint16_t>(value); return;
    case 4: warp.lanes<uint32_t>(operand)[lane] = static_cast<uint32_t>(value); return;
    default: warp.lanes<uint64_t>(operand)[lane] = value;
  }
}

/// sust.p: components of 32 bits become what the surface keeps.
void store_formatted(const TexelFormat& format, std::byte* texel, const uint32_t* values) {
  for (int i = 0; i < format.channel_count; ++i) {
    uint32_t bits = values[i];
    if (format.kind == TexelFormat::Kind::floating && format.channel_bytes == 2)
      bits = round_to<Half>(std::bit_cast<float>(bits)).bits;
    std::memcpy(texel + i * format.channel_bytes, &bits, format.channel_bytes);
  }
}

const Instruction* run_surface(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  auto& more = *static_cast<const MoreOperands*>(instruction.details);
  auto& form = *static_cast<const SurfaceForm*>(more.details.get());
  Finder finder(warp, instruction, /*wants_surface=*/true);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    OperandReader reader(warp, more, form.is_store ? 0 : form.count);
    const Texture* surface = finder.find(lane, reader.next<uint64_t>(lane));
    if (surface == nullptr) return nullptr;
    int32_t layer = form.is_layered ? reader.next<int32_t>(lane) : 0;
    int32_t coordinate[3] = {};
    for (int d = 0; d < form.dimensions; ++d) coordinate[d] = reader.next<int32_t>(lane);
    if (form.is_formatted) coordinate[0] *= static_cast<int32_t>(surface->format.bytes());
    if (form.is_layered) coordinate[2] = layer;
    uint32_t bytes = form.is_formatted ? surface->format.bytes() : uint32_t{form.element_bytes} * form.count;
    std::byte* texel = form.bounds == SurfaceBounds::clamp
                           ? clamped_surface_texel(*surface, coordinate[0], coordinate[1], coordinate[2], bytes)
                           : surface_texel(*surface, coordinate[0], coordinate[1], coordinate[2], bytes);
    if (texel == nullptr && form.bounds == SurfaceBounds::trap)
      return warp.raise(FaultKind::trap, instruction, lane, "surface access out of bounds");
    if (coordinate[0] % form.element_bytes != 0)
      return warp.raise(FaultKind::misaligned_address, instruction, lane, "misaligned surface access");
    if (form.is_formatted) {
      uint32_t values[4] = {};
      for (int i = 0; i < form.count; ++i) values[i] = reader.next<uint32_t>(lane);
      if (texel != nullptr) store_formatted(surface->format, texel, values);
      continue;
    }
    size_t first_source = more.operands.size() - form.count;
    for (int i = 0; i < form.count; ++i) {
      std::byte* element = texel != nullptr ? texel + i * form.element_bytes : nullptr;
      if (form.is_store) {
        uint64_t value = read_register(warp, more.operands[first_source + i], form.register_bytes, lane);
        if (element != nullptr) std::memcpy(element, &value, form.element_bytes);
      } else {
        uint64_t value = 0;
        if (element != nullptr) std::memcpy(&value, element, form.element_bytes);
        write_register(warp, more.operands[i], form.register_bytes, lane, value);
      }
    }
  }
  return &instruction + 1;
}

uint32_t answer(const Texture& texture, TextureQuery query) {
  const Texture::Level& level = texture.levels[0];
  switch (query) {
    case TextureQuery::width: return level.width;
    case TextureQuery::height: return texture.dimensions >= 2 ? level.height : 0;
    case TextureQuery::depth: return texture.dimensions >= 3 ? level.depth : 0;
    case TextureQuery::array_size: return texture.layers;
    case TextureQuery::mipmap_levels: return static_cast<uint32_t>(texture.levels.size());
    case TextureQuery::normalized: return texture.has_normalized_coordinates;
    case TextureQuery::channel_type:
    case TextureQuery::channel_order: return 0;
  }
  return 0;
}

const Instruction* run_query(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  uint32_t* result = warp.lanes<uint32_t>(instruction.operands[0]);
  const uint64_t* handle = warp.lanes<uint64_t>(instruction.operands[1]);
  Finder finder(warp, instruction, instruction.flags & 1);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    const Texture* texture = finder.find(lane, handle[lane]);
    if (texture == nullptr) return nullptr;
    result[lane] = answer(*texture, static_cast<TextureQuery>(instruction.immediate));
  }
  return &instruction + 1;
}

}  // namespace

Handler texture() { return &run_texture; }
Handler surface() { return &run_surface; }
Handler query_texture() { return &run_query; }

}  // namespace fargpu::softgpu::ops
