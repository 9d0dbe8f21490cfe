#pragma once
// Whether somebody knows a secret.

#include <cstddef>
#include <span>

namespace fargpu {

/// Compares all of both, so that the time tells nothing. Where there is no secret, nobody knows it.
inline bool same_secret(std::span<const std::byte> known, std::span<const std::byte> shown) {
  unsigned difference = known.empty() || known.size() != shown.size();
  for (std::size_t i = 0; i < known.size() && i < shown.size(); ++i)
    difference |= std::to_integer<unsigned>(known[i] ^ shown[i]);
  return difference == 0;
}

}  // namespace fargpu
