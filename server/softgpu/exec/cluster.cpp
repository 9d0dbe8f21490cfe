#include "exec/cluster.h"

#include <algorithm>

#include "exec/launch.h"

namespace fargpu::softgpu {

Cluster::Cluster(const Launch& launch) : launch_(&launch) {
  uint64_t count = launch.cluster.count();
  for (uint64_t i = 0; i < count; ++i) blocks_.push_back(std::make_unique<Block>(launch, *this));
  is_finished_.resize(count);
}

void Cluster::start(uint64_t index) {
  const ThreadDimensions& size = launch_->cluster;
  uint64_t across = launch_->grid.x / size.x, down = launch_->grid.y / size.y;
  ThreadDimensions first = {static_cast<uint32_t>(index % across) * size.x,
                            static_cast<uint32_t>(index / across % down) * size.y,
                            static_cast<uint32_t>(index / (across * down)) * size.z};
  for (uint32_t rank = 0; rank < blocks_.size(); ++rank) {
    ThreadDimensions position = {first.x + rank % size.x, first.y + rank / size.x % size.y,
                                 first.z + rank / (size.x * size.y)};
    uint64_t linear = index * blocks_.size() + rank;
    blocks_[rank]->start(position, static_cast<uint32_t>(linear % launch_->multiprocessor_count));
    is_finished_[rank] = false;
  }
}

Block::Outcome Cluster::run(std::chrono::steady_clock::time_point deadline) {
  using Outcome = Block::Outcome;
  while (true) {
    bool all_finished = true, all_stuck = true, all_spinning = true;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (is_finished_[i]) continue;
      Outcome outcome = blocks_[i]->run(deadline);
      if (outcome == Outcome::faulted) {
        faulted_ = blocks_[i].get();
        return outcome;
      }
      is_finished_[i] = outcome == Outcome::finished;
      all_finished &= is_finished_[i];
      all_stuck &= outcome == Outcome::blocked;
      all_spinning &= outcome == Outcome::spinning || outcome == Outcome::blocked;
    }
    if (all_finished) return Outcome::finished;
    if (all_stuck && !has_ready_block()) {
      report_deadlock();
      return Outcome::faulted;
    }
    if (all_spinning) return Outcome::spinning;
    if (std::chrono::steady_clock::now() >= deadline) return Outcome::yielded;
  }
}

bool Cluster::has_ready_block() const {
  return std::any_of(blocks_.begin(), blocks_.end(), [](const auto& block) { return block->has_ready_lanes(); });
}

void Cluster::report_deadlock() {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (is_finished_[i]) continue;
    blocks_[i]->report_deadlock();
    faulted_ = blocks_[i].get();
    return;
  }
}

const Fault& Cluster::fault() const { return faulted_->fault(); }

void Cluster::settle_barrier() {
  bool any_arrived = false;
  for (const auto& block : blocks_) {
    if (!block->has_arrived_at_cluster()) return;
    any_arrived |= block->live_threads() != 0;
  }
  if (!any_arrived) return;
  for (auto& block : blocks_) block->leave_cluster_barrier();
}

}  // namespace fargpu::softgpu
