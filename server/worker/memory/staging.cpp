#include "staging.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "protocol/rdma/stable_memory.h"

namespace fargpu::server {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t in_bytes = 32u << 20;
constexpr std::size_t out_bytes = 32u << 20;

}  // namespace

std::optional<std::span<std::byte>> StagingSpace::take(std::size_t bytes, std::uint64_t owner) {
  const std::size_t needed = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (needed > free_bytes_ || needed < bytes) return std::nullopt;
  if (const auto owned = owned_.find(owner); owner != 0 && owned != owned_.end()) {
    const std::size_t left = free_bytes_ + owned->second;
    const bool alone = left + alignment > memory_.size();
    if (owned->second + needed > (alone ? left - left / 8 : left / 2)) return std::nullopt;
  }
  const auto place =
      std::find_if(free_.begin(), free_.end(), [&](const auto& free) { return free.second - free.first >= needed; });
  if (place == free_.end()) return std::nullopt;
  const auto [begin, end] = *place;
  free_.erase(place);
  if (begin + needed < end) free_[begin + needed] = end;
  taken_[begin] = {begin + needed, owner};
  free_bytes_ -= needed;
  if (owner != 0) owned_[owner] += needed;
  return memory_.subspan(begin, bytes);
}

void StagingSpace::give(std::span<std::byte> part) {
  if (!contains(part.data())) return;
  const auto found = taken_.find(static_cast<std::size_t>(part.data() - memory_.data()));
  if (found == taken_.end()) return;
  const std::size_t begin = found->first;
  const auto [end, owner] = found->second;
  taken_.erase(found);
  if (const auto owned = owned_.find(owner); owned != owned_.end() && (owned->second -= end - begin) == 0)
    owned_.erase(owned);
  free(begin, end);
  ++given_;
}

// With what is free before and behind it.
void StagingSpace::free(std::size_t begin, std::size_t end) {
  free_bytes_ += end - begin;
  const auto next = free_.lower_bound(begin);
  if (next != free_.begin())
    if (const auto before = std::prev(next); before->second == begin) {
      begin = before->first;
      free_.erase(before);
    }
  if (next != free_.end() && next->first == end) {
    end = next->second;
    free_.erase(next);
  }
  free_[begin] = end;
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
  in_ = StagingSpace(bytes.first(in_bytes));
  out_ = StagingSpace(bytes.last(out_bytes));
  rdma::StableMemory::of_process().add(bytes.last(out_bytes).data(),
                                       out_bytes);  // a part is taken until it has arrived
  return true;
}

bool Staging::room_may_come(std::chrono::steady_clock::time_point now) {
  constexpr auto patience = std::chrono::milliseconds(50);
  if (std::exchange(given_seen_, in_.given()) != in_.given() || given_at_ == decltype(given_at_){}) given_at_ = now;
  return now - given_at_ < patience;
}

void Staging::give_in(std::span<std::byte> bulk) {
  if (in_.contains(bulk.data())) in_.give(bulk);
}

void Staging::unpin() {
  if (!std::exchange(pinned_, false)) return;
  // In a context that has failed the driver does not hear of it, and may take other memory there for this one.
  if (driver_.cuMemHostUnregister(memory_.bytes().data()) != CUDA_SUCCESS) memory_.keep_place();
  in_ = StagingSpace();
  out_ = StagingSpace();
}

}  // namespace fargpu::server
