#include "memory/range_allocator.h"

#include <iterator>

namespace fargpu::softgpu {

void RangeAllocator::add(uint64_t begin, uint64_t bytes) {
  uint64_t end = begin + bytes;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->second == begin) {
      previous->second = end;
      return;
    }
  }
  free_.emplace(begin, end);
}

std::optional<uint64_t> RangeAllocator::take(uint64_t bytes, uint64_t align) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    auto [begin, end] = *it;
    uint64_t place = (begin + align - 1) & ~(align - 1);
    if (place < begin || place > end || end - place < bytes) continue;
    free_.erase(it);
    if (place > begin) free_.emplace(begin, place);
    if (place + bytes < end) free_.emplace(place + bytes, end);
    return place;
  }
  return std::nullopt;
}

bool RangeAllocator::take_at(uint64_t begin, uint64_t bytes) {
  auto next = free_.upper_bound(begin);
  if (next == free_.begin()) return false;
  auto found = std::prev(next);
  auto [free_begin, free_end] = *found;
  if (free_end < begin || free_end - begin < bytes) return false;
  free_.erase(found);
  if (begin > free_begin) free_.emplace(free_begin, begin);
  if (begin + bytes < free_end) free_.emplace(begin + bytes, free_end);
  return true;
}

bool RangeAllocator::is_all_free(uint64_t begin, uint64_t bytes) const {
  auto found = free_.find(begin);
  return found != free_.end() && found->second == begin + bytes;
}

}  // namespace fargpu::softgpu
