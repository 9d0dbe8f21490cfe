#include "driver/array.h"

#include <algorithm>

#include "driver/driver.h"

namespace fargpu::softgpu {

TexelFormat texel_format(CUarray_format format, unsigned channel_count) {
  using Kind = TexelFormat::Kind;
  require(channel_count == 1 || channel_count == 2 || channel_count == 4);
  auto channels = static_cast<uint8_t>(channel_count);
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8: return {Kind::unsigned_integer, 1, channels};
    case CU_AD_FORMAT_UNSIGNED_INT16: return {Kind::unsigned_integer, 2, channels};
    case CU_AD_FORMAT_UNSIGNED_INT32: return {Kind::unsigned_integer, 4, channels};
    case CU_AD_FORMAT_SIGNED_INT8: return {Kind::signed_integer, 1, channels};
    case CU_AD_FORMAT_SIGNED_INT16: return {Kind::signed_integer, 2, channels};
    case CU_AD_FORMAT_SIGNED_INT32: return {Kind::signed_integer, 4, channels};
    case CU_AD_FORMAT_HALF: return {Kind::floating, 2, channels};
    case CU_AD_FORMAT_FLOAT: return {Kind::floating, 4, channels};
    default: break;
  }
  // Planar, block compressed and packed formats exist, but not here.
  throw Failure(CUDA_ERROR_NOT_SUPPORTED);
}

Array::Array(int device, uint64_t context_id, const CUDA_ARRAY3D_DESCRIPTOR& descriptor)
    : device_(device), context_id_(context_id), descriptor_(descriptor) {
  measure();
  uint64_t page = large_page_bytes;
  uint64_t bytes = (total_bytes() + page - 1) / page * page;
  memory_ =
      PhysicalMemory::create(Driver::get().device(device).account(), bytes, PhysicalMemory::Sharing::private_memory);
  require(memory_ != nullptr, CUDA_ERROR_OUT_OF_MEMORY);
  host_ = memory_->host();
}

Array::Array(const Array& base, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, uint64_t offset)
    : device_(base.device_),
      context_id_(base.context_id_),
      descriptor_(descriptor),
      memory_(base.memory_),
      is_mip_level_(true) {
  measure();
  host_ = memory_->host() + offset;
}

void Array::measure() {
  constexpr unsigned simple_flags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                                    CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_COLOR_ATTACHMENT;
  require((descriptor_.Flags & ~simple_flags) == 0, CUDA_ERROR_NOT_SUPPORTED);
  require(descriptor_.Width != 0);
  format_ = texel_format(descriptor_.Format, descriptor_.NumChannels);
  constexpr size_t extent_max = 1u << 18;
  require(descriptor_.Width <= extent_max && descriptor_.Height <= extent_max && descriptor_.Depth <= extent_max);
  bool is_layered = descriptor_.Flags & CUDA_ARRAY3D_LAYERED;
  if (descriptor_.Flags & CUDA_ARRAY3D_CUBEMAP) {
    require(descriptor_.Width == descriptor_.Height);
    require(is_layered ? descriptor_.Depth != 0 && descriptor_.Depth % 6 == 0 : descriptor_.Depth == 6);
  }
  require(is_layered || descriptor_.Height != 0 || descriptor_.Depth == 0);
  texel_bytes_ = format_.bytes();
  row_bytes_ = descriptor_.Width * texel_bytes_;
  rows_ = std::max<size_t>(1, descriptor_.Height);
  slices_ = std::max<size_t>(1, descriptor_.Depth);
}

MipmappedArray::MipmappedArray(int device, uint64_t context_id, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                               unsigned level_count) {
  require(level_count != 0 && level_count <= 32);
  // All levels in one block: that of twice the slices is always enough.
  bool is_layered = descriptor.Flags & CUDA_ARRAY3D_LAYERED;
  std::vector<CUDA_ARRAY3D_DESCRIPTOR> descriptors;
  CUDA_ARRAY3D_DESCRIPTOR level = descriptor;
  auto half = [](size_t extent) { return extent == 0 ? 0 : std::max<size_t>(1, extent / 2); };
  for (unsigned i = 0; i < level_count; ++i) {
    descriptors.push_back(level);
    bool is_last = level.Width <= 1 && level.Height <= 1 && (is_layered || level.Depth <= 1);
    if (is_last) break;
    level.Width = half(level.Width);
    level.Height = half(level.Height);
    bool keeps_depth = is_layered || (descriptor.Flags & CUDA_ARRAY3D_CUBEMAP);
    if (!keeps_depth) level.Depth = half(level.Depth);
  }
  uint64_t bytes = 0;
  auto texel_bytes = texel_format(descriptor.Format, descriptor.NumChannels).bytes();
  for (const auto& one : descriptors)
    bytes += one.Width * std::max<size_t>(1, one.Height) * std::max<size_t>(1, one.Depth) * texel_bytes;
  CUDA_ARRAY3D_DESCRIPTOR block = {};
  block.Width = 1 << 16;
  block.Height = bytes / (1 << 16) + 1;
  block.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  block.NumChannels = 1;
  storage_ = std::make_shared<Array>(device, context_id, block);
  uint64_t offset = 0;
  for (const auto& one : descriptors) {
    levels_.push_back(std::make_shared<Array>(*storage_, one, offset));
    offset += levels_.back()->total_bytes();
  }
}

}  // namespace fargpu::softgpu
