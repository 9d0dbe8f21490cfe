#include "staging.h"

#include <algorithm>

namespace fargpu::server {
namespace {

constexpr std::size_t alignment = 64;

}  // namespace

std::optional<std::span<std::byte>> StagingRing::take(std::size_t bytes) {
  const std::size_t needed = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (needed > memory_.size()) return std::nullopt;
  std::size_t begin = 0;
  if (!parts_.empty()) {
    const std::size_t oldest = parts_.front().begin;
    const std::size_t end = parts_.back().end;
    if (end > oldest) {  // free: [end, size) and [0, oldest)
      if (memory_.size() - end >= needed) begin = end;
      else if (oldest >= needed) begin = 0;
      else return std::nullopt;
    } else {  // wrapped: free is [end, oldest)
      if (oldest - end < needed) return std::nullopt;
      begin = end;
    }
  }
  parts_.push_back({begin, begin + needed, false});
  return memory_.subspan(begin, bytes);
}

void StagingRing::give(std::span<std::byte> part) {
  const auto begin = static_cast<std::size_t>(part.data() - memory_.data());
  for (Part& taken : parts_) {
    if (taken.begin != begin || taken.free) continue;
    taken.free = true;
    break;
  }
  while (!parts_.empty() && parts_.front().free) parts_.pop_front();
}

}  // namespace fargpu::server
