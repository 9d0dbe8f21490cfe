#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fargpu::softgpu {

/// Nothing if the data is not what it is said to be, or does not give the size it is said to.
std::optional<std::string> decompress_lz4(std::string_view data, uint64_t size);
std::optional<std::string> decompress_zstd(std::string_view data, uint64_t size);

}  // namespace fargpu::softgpu
