#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fargpu::softgpu {

/// Hands out pieces of a range of numbers, lowest first, and joins what is given back.
class RangeAllocator {
 public:
  RangeAllocator() = default;
  RangeAllocator(uint64_t begin, uint64_t bytes) { add(begin, bytes); }

  /// Makes [begin, begin + bytes) available; it must not overlap what is free already.
  void add(uint64_t begin, uint64_t bytes);
  /// The lowest free place; nothing if there is none. The alignment is a power of two.
  std::optional<uint64_t> take(uint64_t bytes, uint64_t align);
  /// Takes exactly [begin, begin + bytes) if it is all free.
  bool take_at(uint64_t begin, uint64_t bytes);
  /// True if this, and nothing around it, is one free piece.
  bool is_all_free(uint64_t begin, uint64_t bytes) const;

 private:
  std::map<uint64_t, uint64_t> free_;  // begin to end
};

}  // namespace fargpu::softgpu
