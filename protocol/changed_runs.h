#pragma once
// What differs between two states of a block of memory that both sides keep a copy of.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace fargpu {

/// Calls visit(offset, bytes) for each run of eight-byte words (the last may be shorter) in which the two differ.
/// Unchanged words are never part of a run, nor are unchanged halves of its first and last word: the other side may
/// have written them meanwhile.
template <class Visit>
void for_changed_runs(std::span<const std::byte> now, std::span<const std::byte> before, Visit&& visit_words) {
  constexpr std::size_t half = 4;
  const auto visit = [&](std::size_t begin, std::size_t bytes) {
    const auto same = [&](std::size_t at, std::size_t n) {
      return std::memcmp(now.data() + at, before.data() + at, n) == 0;
    };
    if (bytes > half && same(begin, half)) begin += half, bytes -= half;
    if (const std::size_t rest = bytes % half == 0 ? half : bytes % half;
        bytes > rest && same(begin + bytes - rest, rest))
      bytes -= rest;
    visit_words(begin, bytes);
  };
  constexpr std::size_t word = 8, stretch = 4096;
  std::size_t begin = 0;
  bool open = false;
  for (std::size_t at = 0; at < now.size(); at += word) {
    // Most of what is compared has not changed.
    while (!open && now.size() - at > stretch && std::memcmp(now.data() + at, before.data() + at, stretch) == 0)
      at += stretch;
    const std::size_t bytes = now.size() - at < word ? now.size() - at : word;
    const bool differs = std::memcmp(now.data() + at, before.data() + at, bytes) != 0;
    if (differs && !open) begin = at;
    if (!differs && open) visit(begin, at - begin);
    open = differs;
  }
  if (open) visit(begin, now.size() - begin);
}

}  // namespace fargpu
