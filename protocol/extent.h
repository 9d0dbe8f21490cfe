#pragma once
// How many bytes an access spans, so that nobody's arithmetic overflows on a size that was meant to.

#include <cuda.h>

#include <cstdint>

namespace fargpu {

/// Bytes from the first to behind the last of `rows` rows of `elements` elements each, which begin `pitch` bytes apart.
/// No memory is as long as the largest number, which stands for all that do not fit, and for rows that would overlap.
constexpr std::uint64_t extent_of_rows(std::uint64_t elements, std::uint64_t element_bytes, std::uint64_t rows,
                                       std::uint64_t pitch) {
  if (elements == 0 || rows == 0) return 0;
  using Wide = unsigned __int128;
  const Wide row = Wide{elements} * element_bytes;
  const Wide before = Wide{rows - 1} * pitch;
  constexpr Wide most = ~std::uint64_t{0};
  if (rows > 1 && pitch < row) return ~std::uint64_t{0};
  return row > most || before > most - row ? ~std::uint64_t{0} : static_cast<std::uint64_t>(before + row);
}

/// Bytes of one element of an array; 0 where elements have no place of their own (block-compressed and YUV formats).
constexpr std::uint64_t element_bytes(CUarray_format format, std::uint64_t channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return channels * 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return channels * 4;
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1: return 1;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1: return 2;
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT_101010_2: return 4;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4: return 8;
    default: return 0;
  }
}

/// Whether an array has this box: `depth` slices (or layers) of `height` rows of `width` bytes, from byte x of row y of
/// slice z on. What rows are in block-compressed and YUV arrays only the driver knows; there only sizes are refused
/// that no such array has: none has more than 16 bytes for an element of its width, nor more than three rows for one of
/// its height.
constexpr bool array_has(const CUDA_ARRAY3D_DESCRIPTOR& array, std::uint64_t x, std::uint64_t y, std::uint64_t z,
                         std::uint64_t width, std::uint64_t height, std::uint64_t depth) {
  const auto within = [](std::uint64_t begin, std::uint64_t length, std::uint64_t whole) {
    return begin <= whole && length <= whole - begin;
  };
  const std::uint64_t element = element_bytes(array.Format, array.NumChannels), rows = array.Height ? array.Height : 1;
  return within(x, width, array.Width * (element ? element : 16)) && within(y, height, element ? rows : 3 * rows) &&
         within(z, depth, array.Depth ? array.Depth : 1);
}

}  // namespace fargpu
