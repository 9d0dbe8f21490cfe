#include "image/decompress.h"

#include <lz4.h>
#include <zstd.h>

#include <limits>

namespace fargpu::softgpu {
namespace {

// No text compresses better than this; a small hostile entry cannot ask for unbounded memory.
constexpr uint64_t ratio_max = 4096;
constexpr uint64_t size_max = uint64_t{1} << 30;

bool is_plausible(std::string_view data, uint64_t size) {
  return size <= size_max && size / ratio_max <= data.size() &&
         data.size() <= static_cast<size_t>(std::numeric_limits<int>::max());
}

}  // namespace

std::optional<std::string> decompress_lz4(std::string_view data, uint64_t size) {
  if (!is_plausible(data, size)) return std::nullopt;
  std::string result(size, '\0');
  int written = LZ4_decompress_safe(data.data(), result.data(), static_cast<int>(data.size()), static_cast<int>(size));
  if (written < 0 || static_cast<uint64_t>(written) != size) return std::nullopt;
  return result;
}

std::optional<std::string> decompress_zstd(std::string_view data, uint64_t size) {
  if (!is_plausible(data, size)) return std::nullopt;
  std::string result(size, '\0');
  size_t written = ZSTD_decompress(result.data(), result.size(), data.data(), data.size());
  if (ZSTD_isError(written) || written != size) return std::nullopt;
  return result;
}

}  // namespace fargpu::softgpu
