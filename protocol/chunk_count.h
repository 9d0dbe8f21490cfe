#pragma once
// How many of a sequence of numbered things have come, without a gap, when they overtake one another.

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "errors.h"

namespace fargpu {

/// Numbers begin at 1 and are known by their low 32 bits. Used under a lock.
class ChunkCount {
 public:
  /// So many may come before one that is missing.
  explicit ChunkCount(std::size_t gaps_max) : gaps_max_(gaps_max) {}

  /// Throws ProtocolError for a number that came before, or that is too far ahead.
  void add(std::uint32_t low) {
    const std::uint64_t number = whole(low);
    if (number <= count_ || number > count_ + gaps_max_ || !ahead_.insert(number).second)
      throw ProtocolError("chunk " + std::to_string(low) + " of the lanes, which came before or lies too far ahead");
    while (!ahead_.empty() && *ahead_.begin() == count_ + 1) {
      ahead_.erase(ahead_.begin());
      ++count_;
    }
  }
  /// Whether a number lies less far ahead than that.
  bool near(std::uint32_t low) const { return whole(low) <= count_ + gaps_max_; }
  /// All numbers up to this one have come.
  std::uint64_t count() const { return count_; }
  bool reached(std::uint32_t low) const { return whole(low) <= count_; }

 private:
  std::uint64_t whole(std::uint32_t low) const {
    return count_ + static_cast<std::uint64_t>(
                        static_cast<std::int64_t>(static_cast<std::int32_t>(low - static_cast<std::uint32_t>(count_))));
  }

  const std::size_t gaps_max_;
  std::uint64_t count_ = 0;
  std::set<std::uint64_t> ahead_;
};

}  // namespace fargpu
