#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "driver/handle_table.h"
#include "exec/texture.h"
#include "memory/physical_memory.h"

namespace fargpu::softgpu {

/// A CUDA array: texels in memory of its own, row by row, slice by slice.
class Array {
 public:
  /// Throws INVALID_VALUE, NOT_SUPPORTED or OUT_OF_MEMORY.
  Array(int device, uint64_t context_id, const CUDA_ARRAY3D_DESCRIPTOR& descriptor);
  /// One level of a mipmapped array, in its memory.
  Array(const Array& base, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, uint64_t offset);

  const CUDA_ARRAY3D_DESCRIPTOR& descriptor() const { return descriptor_; }
  int device() const { return device_; }
  uint64_t context_id() const { return context_id_; }
  uint32_t texel_bytes() const { return texel_bytes_; }
  uint64_t row_bytes() const { return row_bytes_; }
  uint64_t rows() const { return rows_; }
  uint64_t slices() const { return slices_; }
  uint64_t total_bytes() const { return row_bytes_ * rows_ * slices_; }
  std::byte* row(uint64_t y, uint64_t z) const { return host_ + (z * rows_ + y) * row_bytes_; }
  TexelFormat format() const { return format_; }
  CUarray handle() { return reinterpret_cast<CUarray>(this); }
  bool is_mip_level() const { return is_mip_level_; }

 private:
  void measure();

  const int device_;
  const uint64_t context_id_;
  CUDA_ARRAY3D_DESCRIPTOR descriptor_;
  TexelFormat format_;
  uint32_t texel_bytes_ = 0;
  uint64_t row_bytes_ = 0;
  uint64_t rows_ = 0;
  uint64_t slices_ = 0;
  std::shared_ptr<PhysicalMemory> memory_;
  std::byte* host_ = nullptr;
  bool is_mip_level_ = false;
};

/// An array with smaller copies of itself.
class MipmappedArray {
 public:
  MipmappedArray(int device, uint64_t context_id, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned level_count);
  const std::vector<std::shared_ptr<Array>>& levels() const { return levels_; }
  uint64_t context_id() const { return levels_.front()->context_id(); }
  CUmipmappedArray handle() { return reinterpret_cast<CUmipmappedArray>(this); }

 private:
  std::shared_ptr<Array> storage_;
  std::vector<std::shared_ptr<Array>> levels_;
};

using ArrayTable = HandleTable<Array, CUarray>;
using MipmappedArrayTable = HandleTable<MipmappedArray, CUmipmappedArray>;

/// Throws INVALID_VALUE for formats that do not exist, NOT_SUPPORTED for those not simple.
TexelFormat texel_format(CUarray_format format, unsigned channel_count);

}  // namespace fargpu::softgpu
