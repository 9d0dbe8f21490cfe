#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/block.h"

namespace fargpu::softgpu {

/// Blocks that share one anothers' shared memory and a barrier (PTX ISA 2.2.2); mostly just one.
/// All run on one host thread at a time: the unit in which work is given to host threads.
class Cluster {
 public:
  explicit Cluster(const Launch& launch);

  /// Starts the blocks of the cluster of the given linear index within the grid.
  void start(uint64_t index);
  Block::Outcome run(std::chrono::steady_clock::time_point deadline);
  const Fault& fault() const;

  // ---- for handlers ------------------------------------------------------------------------------------------------

  uint32_t block_count() const { return static_cast<uint32_t>(blocks_.size()); }
  Block& block(uint32_t rank) { return *blocks_[rank]; }
  /// To be called when threads arrived at the barrier of the cluster, or exited. Once every live
  /// thread has arrived, all are let through.
  void settle_barrier();

 private:
  bool has_ready_block() const;
  void report_deadlock();

  const Launch* launch_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<bool> is_finished_;
  const Block* faulted_ = nullptr;
};

}  // namespace fargpu::softgpu
