#include "program/ir.h"

#include <cstring>

namespace fargpu::softgpu::program {

uint32_t IrFunction::append_constant(const void* lane_value, uint32_t bytes) {
  // Lanes of 64-byte alignment, as in frames.
  uint32_t offset = static_cast<uint32_t>((constants_.size() + 63) / 64 * 64);
  constants_.resize(offset + size_t{bytes} * warp_size);
  for (int lane = 0; lane < warp_size; ++lane)
    std::memcpy(constants_.data() + offset + size_t{bytes} * lane, lane_value, bytes);
  return offset;
}

Value IrFunction::constant(uint64_t bits, uint32_t bytes) {
  if (bytes < 8) bits &= (uint64_t{1} << (8 * bytes)) - 1;
  auto [found, is_new] = constant_offsets_.try_emplace({bits, bytes}, 0);
  if (is_new) found->second = append_constant(&bits, bytes);
  return {Value::Kind::constant, found->second};
}

Value IrFunction::constant_128(uint64_t low, uint64_t high) {
  uint64_t bits[2] = {low, high};
  return {Value::Kind::constant, append_constant(bits, sizeof bits)};
}

Value IrFunction::constant_predicate(bool value) { return constant(value ? all_lanes : 0, 4); }

Value IrFunction::relocated(ConstantRelocation::Kind kind, uint32_t index, int64_t addend, uint32_t bytes) {
  uint64_t bits = static_cast<uint64_t>(addend);
  uint32_t offset = append_constant(&bits, bytes);
  relocations_.push_back({offset, kind, static_cast<uint8_t>(bytes), index});
  return {Value::Kind::constant, offset};
}

}  // namespace fargpu::softgpu::program
