#pragma once
// Pages of memory, and memory by its address.

#include <cstddef>
#include <cstdint>

namespace fargpu::client {

inline constexpr std::uint64_t page_bytes = 4096;

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t to = page_bytes) {
  return (bytes + to - 1) / to * to;
}

inline std::byte* bytes_at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace fargpu::client
