#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/fault.h"
#include "exec/frame_pool.h"
#include "exec/memory_view.h"
#include "exec/warp.h"

namespace fargpu::softgpu {

class Cluster;
struct Launch;

enum class BarrierKind : uint8_t { sync, arrive, reduce_popc, reduce_and, reduce_or };

/// The threads of one block with their shared memory and barriers. Runs on one host thread at a
/// time, warp after warp.
class Block {
 public:
  static constexpr uint32_t barrier_count = 16;    // PTX ISA 9.7.13.1
  static constexpr uint32_t cluster_barrier = 16;  // the number under which lanes wait for it

  Block(const Launch& launch, Cluster& cluster);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// Puts all threads at the start of the kernel, as the block of the given index.
  void start(ThreadDimensions block_index, uint32_t multiprocessor);

  enum class Outcome : uint8_t { finished, blocked, yielded, spinning, faulted };
  /// Runs until something stops all warps, or until the deadline.
  Outcome run(std::chrono::steady_clock::time_point deadline);

  // ---- for warps, handlers and the cluster -------------------------------------------------------------------------

  FramePool& frames() { return frames_; }
  Cluster& cluster() { return *cluster_; }
  const Launch& launch() const { return *launch_; }
  MemoryView& memory() { return memory_; }
  uint32_t live_threads() const { return live_threads_; }
  void threads_exited(uint32_t count);

  /// The active lanes of a warp come to a barrier; zero expected threads mean all of the block.
  /// True if that completed it; then all others that wait are ready again.
  bool arrive(Warp& warp, uint32_t barrier, uint32_t expected_threads, LaneMask predicate);
  /// What a reduction over a barrier that just completed gave.
  uint32_t reduction(BarrierKind kind) const;
  /// True if every live thread has arrived at the barrier of the cluster.
  bool has_arrived_at_cluster() const;
  void leave_cluster_barrier();

  void report_fault(FaultKind kind, const Warp& warp, const Instruction& at, int lane, std::string what);
  void report_deadlock();
  const Fault& fault() const { return fault_; }
  bool has_ready_lanes() const;
  std::string describe_thread(const Warp& warp, int lane) const;
  /// Position of a thread in the block, x running fastest.
  static ThreadDimensions thread_index(const Launch& launch, uint32_t thread);
  ThreadDimensions index() const { return index_; }

  /// Shared memory of another block of the cluster, or of this one.
  std::span<std::byte> shared_of_rank(uint32_t rank);

 private:
  struct Barrier {
    uint32_t expected = 0;
    uint32_t true_count = 0;
    bool is_in_use = false;
    std::vector<LaneMask> arrived;  // per warp
  };

  bool is_complete(const Barrier& barrier) const;
  void complete(uint32_t id);
  void release_barrier(uint32_t barrier);
  void fill_fixed_registers();

  const Launch* launch_;
  Cluster* cluster_;
  ThreadDimensions index_;
  uint32_t thread_count_;
  uint32_t live_threads_ = 0;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<std::unique_ptr<WarpRegisters>> warp_registers_;
  std::unique_ptr<BlockRegisters> registers_;
  FramePool frames_;
  MemoryView memory_;
  std::unique_ptr<std::byte[]> shared_storage_;
  std::byte* local_ = nullptr;  // of all warps; mapped, because most of it is never touched
  size_t local_mapping_bytes_ = 0;
  std::array<Barrier, barrier_count> barriers_;
  uint32_t completed_true_count_ = 0;
  uint32_t completed_thread_count_ = 0;
  Fault fault_;
};

}  // namespace fargpu::softgpu
