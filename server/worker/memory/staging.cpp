#include "staging.h"

#include <algorithm>
#include <utility>

#include "protocol/rdma/stable_memory.h"

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

Staging::~Staging() {
  if (!memory_.empty()) rdma::StableMemory::of_process().remove(memory_.bytes().last(out_bytes).data());
}

bool Staging::ready() {
  if (!memory_.empty()) return pinned_;
  if (budget_) {
    auto charge = HostCharge::take(*budget_, in_bytes + out_bytes);
    if (!charge) return false;
    charge_ = std::move(*charge);
  }
  Pages memory(in_bytes + out_bytes);
  const std::span<std::byte> bytes = memory.bytes();
  if (memory.empty() ||
      driver_.cuMemHostRegister_v2(bytes.data(), bytes.size(), CU_MEMHOSTREGISTER_PORTABLE) != CUDA_SUCCESS) {
    charge_ = HostCharge();
    return false;
  }
  memory_ = std::move(memory);
  pinned_ = true;
  in_ = StagingRing(bytes.first(in_bytes));
  out_ = StagingRing(bytes.last(out_bytes));
  rdma::StableMemory::of_process().add(bytes.last(out_bytes).data(),
                                       out_bytes);  // a part is taken until it has arrived
  return true;
}

void Staging::give_in(std::span<std::byte> bulk) {
  if (in_.contains(bulk.data())) in_.give(bulk);
}

void Staging::unpin() {
  if (!std::exchange(pinned_, false)) return;
  // In a context that has failed the driver does not hear of it, and may take other memory there for this one.
  if (driver_.cuMemHostUnregister(memory_.bytes().data()) != CUDA_SUCCESS) memory_.keep_place();
  in_ = StagingRing();
  out_ = StagingRing();
}

}  // namespace fargpu::server
