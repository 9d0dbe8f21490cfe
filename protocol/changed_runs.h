#pragma once
// What differs between two states of a block of memory that both sides keep a copy of.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace fargpu {

/// What changes by itself: what is smaller, two sides cannot write at the same time.
inline constexpr std::size_t change_bytes = 4;

/// Calls visit(offset, bytes) for each run of words of four bytes (the last may be shorter) in which the two differ.
/// Unchanged words are never part of a run: the other side may have written them meanwhile.
template <class Visit>
void for_changed_runs(std::span<const std::byte> now, std::span<const std::byte> before, Visit&& visit) {
  constexpr std::size_t pair = 2 * change_bytes, stretch = 4096;
  const std::size_t size = now.size();
  std::size_t begin = 0;
  bool open = false;
  const auto word = [&](std::size_t at, std::size_t bytes) {
    const bool differs = std::memcmp(now.data() + at, before.data() + at, bytes) != 0;
    if (differs && !open) begin = at;
    if (!differs && open) visit(begin, at - begin);
    open = differs;
  };
  for (std::size_t at = 0; at < size;) {
    if (!open) {
      // Most of what is compared has not changed.
      while (size - at > stretch && std::memcmp(now.data() + at, before.data() + at, stretch) == 0) at += stretch;
      while (size - at > pair && std::memcmp(now.data() + at, before.data() + at, pair) == 0) at += pair;
    }
    const std::size_t bytes = std::min(change_bytes, size - at);
    word(at, bytes);
    at += bytes;
  }
  if (open) visit(begin, size - begin);
}

/// Calls visit(offset, bytes) for runs as above with what lies between them, where that is less than `gap`.
template <class Visit>
void for_changed_stretches(std::span<const std::byte> now, std::span<const std::byte> before, std::size_t gap,
                           Visit&& visit) {
  std::size_t begin = 0, end = 0;
  for_changed_runs(now, before, [&](std::size_t offset, std::size_t bytes) {
    if (end == 0 || offset - end >= gap) {
      if (end > 0) visit(begin, end - begin);
      begin = offset;
    }
    end = offset + bytes;
  });
  if (end > 0) visit(begin, end - begin);
}

/// The offset of the first word that two sides have changed at the same time, to something else; the size of the block
/// if there is none.
inline std::size_t changed_by_both(std::span<const std::byte> one, std::span<const std::byte> other,
                                   std::span<const std::byte> before) {
  std::size_t found = one.size();
  for_changed_runs(one, before, [&](std::size_t offset, std::size_t bytes) {
    for (std::size_t at = offset; at < offset + bytes && found == one.size(); at += change_bytes) {
      const std::size_t word = std::min(change_bytes, one.size() - at);
      const auto same = [&](std::span<const std::byte> a, std::span<const std::byte> b) {
        return std::memcmp(a.data() + at, b.data() + at, word) == 0;
      };
      if (!same(other, before) && !same(other, one)) found = at;
    }
  });
  return found;
}

}  // namespace fargpu
