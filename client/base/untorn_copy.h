#pragma once
// Writing memory of the program on behalf of the GPU.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace fargpu::client {

/// Copies `bytes` to where threads of the program may be waiting for them to change: as with a GPU's writes, nobody
/// sees half of an aligned word of up to eight bytes, nor a race.
inline void copy_untorn(std::byte* to, std::span<const std::byte> bytes) {
  const auto each = [&]<class Word>(Word) {
    Word word;
    std::memcpy(&word, bytes.data(), sizeof(word));
    __atomic_store_n(reinterpret_cast<Word*>(to), word, __ATOMIC_RELEASE);
    to += sizeof(word);
    bytes = bytes.subspan(sizeof(word));
  };
  const auto fits = [&](std::size_t word) {
    return bytes.size() >= word && reinterpret_cast<std::uintptr_t>(to) % word == 0;
  };
  while (!bytes.empty()) {
    if (fits(8)) each(std::uint64_t{});
    else if (fits(4)) each(std::uint32_t{});
    else if (fits(2)) each(std::uint16_t{});
    else each(std::uint8_t{});
  }
}

}  // namespace fargpu::client
