#pragma once
// The name of an image: a hash of its contents.

#include <array>
#include <cstddef>
#include <span>

namespace fargpu {

/// SHA-256.
using ImageHash = std::array<std::byte, 32>;
ImageHash hash_image(std::span<const std::byte> bytes);

}  // namespace fargpu
