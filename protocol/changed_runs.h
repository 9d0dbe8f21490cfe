#pragma once
// What differs between two states of a block of memory that both sides keep a copy of.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace fargpu {

/// Calls visit(offset, bytes) for each run of eight-byte words (the last may be shorter) in which the two differ. Unchanged words
/// are never part of a run: the other side may have written them meanwhile.
template <class Visit>
void for_changed_runs(std::span<const std::byte> now, std::span<const std::byte> before, Visit&& visit) {
  constexpr std::size_t word = 8;
  std::size_t begin = 0;
  bool open = false;
  for (std::size_t at = 0; at < now.size(); at += word) {
    const std::size_t bytes = now.size() - at < word ? now.size() - at : word;
    const bool differs = std::memcmp(now.data() + at, before.data() + at, bytes) != 0;
    if (differs && !open) begin = at;
    if (!differs && open) visit(begin, at - begin);
    open = differs;
  }
  if (open) visit(begin, now.size() - begin);
}

}  // namespace fargpu
