#include "staging.h"

#include <algorithm>

namespace fargpu::server {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t in_bytes = 32u << 20;
constexpr std::size_t out_bytes = 32u << 20;

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

bool Staging::ready() {
  if (!rings_.empty() && !rings_.back().left) return true;
  if (!contexts_.current() && (contexts_.empty() || !contexts_.borrow())) return false;
  void* memory = nullptr;
  if (driver_.cuMemHostAlloc(&memory, in_bytes + out_bytes, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS) return false;
  auto* const bytes = static_cast<std::byte*>(memory);
  rings_.push_back({memory, contexts_.current(), StagingRing({bytes, in_bytes}), StagingRing({bytes + in_bytes, out_bytes})});
  return true;
}

bool Staging::holds(const std::byte* address) const {
  return std::any_of(rings_.begin(), rings_.end(),
                     [&](const Rings& rings) { return rings.in.contains(address) || rings.out.contains(address); });
}

void Staging::give(std::span<std::byte> part) {
  for (Rings& rings : rings_)
    for (StagingRing* const ring : {&rings.in, &rings.out})
      if (ring->contains(part.data())) return ring->give(part);
}

bool Staging::leave(const ContextState& context) {
  bool unused = true;
  for (Rings& rings : rings_) {
    if (rings.context != &context) continue;
    rings.left = true;
    unused = unused && rings.in.empty() && rings.out.empty();
  }
  return unused;
}

void Staging::inherit(const ContextState& context, ContextState& heir) {
  for (Rings& rings : rings_)
    if (rings.context == &context) rings.context = &heir;
}

void Staging::context_closes(const ContextState& context) {
  std::erase_if(rings_, [&](const Rings& rings) {
    if (rings.context != &context) return false;
    driver_.cuMemFreeHost(rings.memory);
    return true;
  });
}

}  // namespace fargpu::server
