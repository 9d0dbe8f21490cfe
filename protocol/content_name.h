#pragma once
// The name of contents of memory: a hash of exactly the bytes that would be sent.

#include <array>
#include <cstddef>
#include <span>

namespace fargpu {

/// BLAKE3, of which one thread makes several times as much as of SHA-256. Both sides name by it whatever passes.
using ContentName = std::array<std::byte, 32>;
ContentName name_content(std::span<const std::byte> bytes);

}  // namespace fargpu
