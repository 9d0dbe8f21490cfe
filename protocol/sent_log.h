#pragma once
// The last bytes of a stream, for when they must be sent again.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "program_memory.h"

namespace fargpu {

/// A ring that grows up to its bound. Positions count from the beginning of the stream. Used under a lock.
class SentLog {
 public:
  explicit SentLog(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  std::uint64_t begin() const { return begin_; }
  std::uint64_t end() const { return end_; }
  std::size_t room() const { return bytes_max_ - static_cast<std::size_t>(end_ - begin_); }

  /// At most room() bytes. `foreign`: of a program, whose pages may not be there any more.
  void append(std::span<const std::byte> bytes, bool foreign) {
    if (const std::size_t used = static_cast<std::size_t>(end_ - begin_); used + bytes.size() > capacity_)
      grow(used + bytes.size());
    while (!bytes.empty()) {
      const std::size_t at = static_cast<std::size_t>(end_ % capacity_);
      const std::size_t part = std::min(bytes.size(), capacity_ - at);
      // What cannot be read any more was read a moment ago, and the program has taken it away while it was being sent.
      if (!foreign) std::memcpy(ring_.get() + at, bytes.data(), part);
      else if (!read_program_memory(bytes.data(), ring_.get() + at, part)) std::memset(ring_.get() + at, 0, part);
      end_ += part;
      bytes = bytes.subspan(part);
    }
  }

  /// Forgets what comes before.
  void drop_before(std::uint64_t position) { begin_ = std::max(begin_, std::min(position, end_)); }

  /// From there on, in two pieces.
  std::array<std::span<const std::byte>, 2> from(std::uint64_t position) const {
    if (position == end_) return {};
    const auto size = static_cast<std::size_t>(end_ - position);
    const auto at = static_cast<std::size_t>(position % capacity_);
    const std::size_t first = std::min(size, capacity_ - at);
    return {std::span<const std::byte>(ring_.get() + at, first), std::span<const std::byte>(ring_.get(), size - first)};
  }

 private:
  void grow(std::size_t needed) {
    std::size_t capacity = std::max<std::size_t>(capacity_, 64u << 10);
    while (capacity < needed) capacity *= 2;
    auto ring = std::make_unique_for_overwrite<std::byte[]>(capacity);
    std::uint64_t to = begin_;
    for (std::span<const std::byte> piece : from(begin_)) {
      while (!piece.empty()) {
        const auto at = static_cast<std::size_t>(to % capacity);
        const std::size_t part = std::min(piece.size(), capacity - at);
        std::memcpy(ring.get() + at, piece.data(), part);
        to += part;
        piece = piece.subspan(part);
      }
    }
    ring_ = std::move(ring);
    capacity_ = capacity;
  }

  const std::size_t bytes_max_;
  std::unique_ptr<std::byte[]> ring_;
  std::size_t capacity_ = 0;
  std::uint64_t begin_ = 0, end_ = 0;
};

}  // namespace fargpu
