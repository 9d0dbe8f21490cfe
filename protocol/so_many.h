#pragma once
// Numbers of things, as people say them.

#include <cstdint>
#include <string>
#include <string_view>

namespace fargpu {

/// "1 GPU", "3 GPUs".
inline std::string so_many(std::uint64_t count, std::string_view what) {
  return std::to_string(count).append(" ").append(what).append(count == 1 ? "" : "s");
}

}  // namespace fargpu
