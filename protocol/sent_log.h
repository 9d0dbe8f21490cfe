#pragma once
// The last bytes of a stream, for when they must be sent again.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>

#include "device_bytes.h"
#include "program_memory.h"

namespace fargpu {

/// A ring that grows up to its bound. Bytes that are lent have their place in it, and are written there only when they
/// may change. Positions count from the beginning of the stream. Used under a lock.
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
    write(end_, bytes, foreign);
    end_ += bytes.size();
  }

  /// At most room() bytes, which stay where they are, and as they are, until they are dropped or copy_loans() is
  /// called.
  void lend(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    if (capacity_ < bytes_max_) grow(bytes_max_);  // their place in the ring is kept free
    Loan* const last = loans_.empty() ? nullptr : &loans_.back();
    if (last && last->begin + last->bytes.size() == end_ && last->bytes.data() + last->bytes.size() == bytes.data())
      last->bytes = {last->bytes.data(), last->bytes.size() + bytes.size()};
    else loans_.push_back({end_, bytes});
    end_ += bytes.size();
  }
  bool lends() const { return !loans_.empty(); }
  /// Whether any of these bytes are lent.
  bool has_lent(std::span<const std::byte> bytes) const {
    return std::any_of(loans_.begin(), loans_.end(), [&](const Loan& loan) {
      return loan.bytes.data() < bytes.data() + bytes.size() && bytes.data() < loan.bytes.data() + loan.bytes.size();
    });
  }
  /// Nothing is lent any more. Calls `lost(bytes)` for what was lent and cannot be read any more: zeros take its place.
  /// Throws DeviceBytesError for memory of a GPU that cannot be read.
  template <class Lost>
  void copy_loans(Lost&& lost) {
    for (const Loan& loan : loans_) {
      const auto gone = static_cast<std::size_t>(std::max(begin_, loan.begin) - loan.begin);
      const std::span<const std::byte> kept = loan.bytes.subspan(gone);
      if (!write(loan.begin + gone, kept, /*foreign=*/true)) lost(kept);
    }
    loans_.clear();
  }

  /// Forgets what comes before.
  void drop_before(std::uint64_t position) {
    begin_ = std::max(begin_, std::min(position, end_));
    while (!loans_.empty() && loans_.front().begin + loans_.front().bytes.size() <= begin_) loans_.pop_front();
  }

  /// What comes from there on: all of it, or a part, in two pieces.
  std::array<std::span<const std::byte>, 2> from(std::uint64_t position) const {
    std::uint64_t end = end_;
    for (const Loan& loan : loans_) {
      if (position < loan.begin) {
        end = loan.begin;
        break;
      }
      if (position < loan.begin + loan.bytes.size())
        return {loan.bytes.subspan(static_cast<std::size_t>(position - loan.begin))};
    }
    if (position == end) return {};
    const auto size = static_cast<std::size_t>(end - position);
    const auto at = static_cast<std::size_t>(position % capacity_);
    const std::size_t first = std::min(size, capacity_ - at);
    return {std::span<const std::byte>(ring_.get() + at, first), std::span<const std::byte>(ring_.get(), size - first)};
  }

 private:
  struct Loan {
    std::uint64_t begin;
    std::span<const std::byte> bytes;
  };

  // False if some cannot be read.
  bool write(std::uint64_t to, std::span<const std::byte> bytes, bool foreign) {
    bool readable = true;
    while (!bytes.empty()) {
      const std::size_t at = static_cast<std::size_t>(to % capacity_);
      const std::size_t part = std::min(bytes.size(), capacity_ - at);
      // What cannot be read any more was read a moment ago, and the program has taken it away while it was being sent.
      if (!foreign) {
        std::memcpy(ring_.get() + at, bytes.data(), part);
      } else if (!read_program_memory(bytes.data(), ring_.get() + at, part)) {
        throw_if_on_device(bytes.data());
        std::memset(ring_.get() + at, 0, part);
        readable = false;
      }
      to += part;
      bytes = bytes.subspan(part);
    }
    return readable;
  }

  // Before anything is lent.
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
  std::deque<Loan> loans_;  // in their order
};

}  // namespace fargpu
