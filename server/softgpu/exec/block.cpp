#include "exec/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "exec/cluster.h"
#include "exec/launch.h"

namespace fargpu::softgpu {
namespace {

// Jumps a warp may make before the next warp of its block has a turn.
constexpr int64_t warp_turn_fuel = 4096;
// Rounds in which all warps only waited for memory to change before the block gives way.
constexpr int spinning_rounds_max = 4;

template <class T>
void fill(Lanes<T>& lanes, T value) {
  std::fill_n(lanes.lane, warp_size, value);
}

}  // namespace

Block::Block(const Launch& launch, Cluster& cluster)
    : launch_(&launch),
      cluster_(&cluster),
      thread_count_(static_cast<uint32_t>(launch.block.count())),
      registers_(new BlockRegisters()) {
  uint32_t warp_count = (thread_count_ + warp_size - 1) / warp_size;
  uint32_t shared_bytes = reserved_shared_bytes + launch.kernel->static_shared_bytes + launch.dynamic_shared_bytes;
  shared_storage_.reset(new (std::align_val_t(64)) std::byte[shared_bytes]);
  memory_.page_table = launch.page_table;
  memory_.shared = shared_storage_.get();
  memory_.shared_bytes = shared_bytes;
  memory_.parameters = launch.parameters.data();
  memory_.parameter_bytes = static_cast<uint32_t>(launch.parameters.size());

  size_t warp_local_bytes = size_t{launch.stack_bytes} * warp_size;
  local_mapping_bytes_ = warp_local_bytes * warp_count;
  if (local_mapping_bytes_ != 0) {
    void* mapping =
        mmap(nullptr, local_mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    local_ = static_cast<std::byte*>(mapping);
  }

  fill_fixed_registers();
  for (uint32_t i = 0; i < warp_count; ++i) {
    uint32_t first_thread = i * warp_size;
    auto warp = std::make_unique<Warp>(*this, i, std::min<uint32_t>(warp_size, thread_count_ - first_thread));
    auto registers = std::make_unique<WarpRegisters>();
    for (uint32_t lane = 0; lane < warp_size; ++lane) {
      ThreadDimensions thread = thread_index(launch, first_thread + lane);
      registers->tid_x.lane[lane] = thread.x;
      registers->tid_y.lane[lane] = thread.y;
      registers->tid_z.lane[lane] = thread.z;
      registers->laneid.lane[lane] = lane;
      LaneMask self = LaneMask{1} << lane;
      registers->lanemask_eq.lane[lane] = self;
      registers->lanemask_lt.lane[lane] = self - 1;
      registers->lanemask_le.lane[lane] = self | (self - 1);
      registers->lanemask_gt.lane[lane] = ~(self | (self - 1));
      registers->lanemask_ge.lane[lane] = ~(self - 1);
    }
    fill(registers->warpid, i);
    warp->banks[static_cast<int>(Bank::warp)] = reinterpret_cast<std::byte*>(registers.get());
    warp->banks[static_cast<int>(Bank::block)] = reinterpret_cast<std::byte*>(registers_.get());
    warp->memory = &memory_;
    warp->launch = &launch;
    warp->local = local_ + warp_local_bytes * i;
    warp->local_bytes = launch.stack_bytes;
    warps_.push_back(std::move(warp));
    warp_registers_.push_back(std::move(registers));
  }
  for (Barrier& barrier : barriers_) barrier.arrived.resize(warp_count);
}

Block::~Block() {
  if (local_ != nullptr) munmap(local_, local_mapping_bytes_);
  ::operator delete[](shared_storage_.release(), std::align_val_t(64));
}

void Block::fill_fixed_registers() {
  const Launch& launch = *launch_;
  BlockRegisters& r = *registers_;
  fill(r.ntid_x, launch.block.x);
  fill(r.ntid_y, launch.block.y);
  fill(r.ntid_z, launch.block.z);
  fill(r.nctaid_x, launch.grid.x);
  fill(r.nctaid_y, launch.grid.y);
  fill(r.nctaid_z, launch.grid.z);
  fill(r.nwarpid, (thread_count_ + warp_size - 1) / warp_size);
  fill(r.nsmid, launch.multiprocessor_count);
  fill(r.gridid, launch.grid_id);
  fill(r.cluster_nctaid_x, launch.cluster.x);
  fill(r.cluster_nctaid_y, launch.cluster.y);
  fill(r.cluster_nctaid_z, launch.cluster.z);
  fill(r.nclusterid_x, launch.grid.x / launch.cluster.x);
  fill(r.nclusterid_y, launch.grid.y / launch.cluster.y);
  fill(r.nclusterid_z, launch.grid.z / launch.cluster.z);
  fill(r.cluster_nctarank, static_cast<uint32_t>(launch.cluster.count()));
  fill(r.is_explicit_cluster, uint32_t{launch.is_cluster_explicit});
  uint32_t user_shared_bytes = launch.kernel->static_shared_bytes + launch.dynamic_shared_bytes;
  fill(r.total_smem_size, user_shared_bytes);
  fill(r.aggr_smem_size, user_shared_bytes + reserved_shared_bytes);
  fill(r.dynamic_smem_size, launch.dynamic_shared_bytes);
  fill(r.envreg1, static_cast<uint32_t>(launch.workspace >> 32));
  fill(r.envreg2, static_cast<uint32_t>(launch.workspace));
  fill(r.zero, uint32_t{0});
}

ThreadDimensions Block::thread_index(const Launch& launch, uint32_t thread) {
  return {thread % launch.block.x, thread / launch.block.x % launch.block.y,
          thread / (launch.block.x * launch.block.y)};
}

void Block::start(ThreadDimensions block_index, uint32_t multiprocessor) {
  index_ = block_index;
  BlockRegisters& r = *registers_;
  const ThreadDimensions& cluster = launch_->cluster;
  fill(r.ctaid_x, index_.x);
  fill(r.ctaid_y, index_.y);
  fill(r.ctaid_z, index_.z);
  fill(r.smid, multiprocessor);
  fill(r.clusterid_x, index_.x / cluster.x);
  fill(r.clusterid_y, index_.y / cluster.y);
  fill(r.clusterid_z, index_.z / cluster.z);
  ThreadDimensions rank = {index_.x % cluster.x, index_.y % cluster.y, index_.z % cluster.z};
  fill(r.cluster_ctaid_x, rank.x);
  fill(r.cluster_ctaid_y, rank.y);
  fill(r.cluster_ctaid_z, rank.z);
  fill(r.cluster_ctarank, rank.x + cluster.x * (rank.y + cluster.y * rank.z));

  std::memset(memory_.shared, 0, memory_.shared_bytes);
  frames_.reset();
  live_threads_ = thread_count_;
  for (Barrier& barrier : barriers_) {
    std::fill(barrier.arrived.begin(), barrier.arrived.end(), 0);
    barrier.is_in_use = false;
    barrier.true_count = 0;
  }
  for (auto& warp : warps_) warp->start(*launch_->kernel);
}

Block::Outcome Block::run(std::chrono::steady_clock::time_point deadline) {
  memory_.refresh();
  int spinning_rounds = 0;
  while (live_threads_ != 0) {
    bool has_run = false, was_spinning = true;
    for (auto& warp : warps_) {
      if (!warp->has_ready_lanes()) continue;
      has_run = true;
      Warp::Outcome outcome = warp->run(warp_turn_fuel);
      if (outcome == Warp::Outcome::faulted) return Outcome::faulted;
      was_spinning &= outcome == Warp::Outcome::yielded && warp->was_spinning();
    }
    if (live_threads_ == 0) break;
    if (!has_run) return Outcome::blocked;
    spinning_rounds = was_spinning ? spinning_rounds + 1 : 0;
    if (spinning_rounds >= spinning_rounds_max) return Outcome::spinning;
    if (std::chrono::steady_clock::now() >= deadline) return Outcome::yielded;
  }
  return Outcome::finished;
}

bool Block::arrive(Warp& warp, uint32_t id, uint32_t expected_threads, LaneMask predicate) {
  Barrier& barrier = barriers_[id];
  barrier.is_in_use = true;
  barrier.expected = expected_threads;
  barrier.arrived[warp.index] |= warp.active;
  barrier.true_count += std::popcount(predicate & warp.active);
  if (!is_complete(barrier)) return false;
  complete(id);
  return true;
}

bool Block::is_complete(const Barrier& barrier) const {
  uint64_t arrived = 0;
  for (size_t i = 0; i < warps_.size(); ++i) {
    LaneMask live = ~warps_[i]->dead;
    bool is_whole_warp = (live & ~barrier.arrived[i]) == 0;
    if (barrier.expected == 0 && !is_whole_warp) return false;
    // Thread counts are multiples of the warp size: a warp counts in full, whatever its size.
    if (barrier.arrived[i] != 0) arrived += is_whole_warp ? warp_size : std::popcount(barrier.arrived[i]);
  }
  return arrived >= barrier.expected;
}

void Block::complete(uint32_t id) {
  Barrier& barrier = barriers_[id];
  completed_true_count_ = barrier.true_count;
  completed_thread_count_ = 0;
  for (LaneMask arrived : barrier.arrived) completed_thread_count_ += std::popcount(arrived);
  std::fill(barrier.arrived.begin(), barrier.arrived.end(), 0);
  barrier.is_in_use = false;
  barrier.true_count = 0;
  release_barrier(id);
}

uint32_t Block::reduction(BarrierKind kind) const {
  switch (kind) {
    case BarrierKind::reduce_popc: return completed_true_count_;
    case BarrierKind::reduce_and: return completed_true_count_ == completed_thread_count_;
    case BarrierKind::reduce_or: return completed_true_count_ != 0;
    default: return 0;
  }
}

void Block::release_barrier(uint32_t barrier) {
  for (auto& warp : warps_)
    warp->release_barrier(barrier, [&](Warp& waiting, const Instruction& at, LaneMask lanes) {
      auto kind = static_cast<BarrierKind>(at.immediate & 0xff);
      if (kind == BarrierKind::reduce_popc) {
        uint32_t* result = waiting.lanes<uint32_t>(at.operands[0]);
        for_each_lane(lanes, [&](int lane) { result[lane] = completed_true_count_; });
      } else if (kind == BarrierKind::reduce_and || kind == BarrierKind::reduce_or) {
        waiting.set_predicate(at.operands[0], lanes, reduction(kind) ? all_lanes : 0);
      }
    });
}

void Block::threads_exited(uint32_t count) {
  live_threads_ -= count;
  for (uint32_t id = 0; id < barrier_count; ++id)
    if (barriers_[id].is_in_use && barriers_[id].expected == 0 && is_complete(barriers_[id])) complete(id);
  cluster_->settle_barrier();
}

bool Block::has_arrived_at_cluster() const {
  return std::all_of(warps_.begin(), warps_.end(),
                     [](const auto& warp) { return (~warp->dead & ~warp->arrived_at_cluster) == 0; });
}

void Block::leave_cluster_barrier() {
  for (auto& warp : warps_) warp->arrived_at_cluster = 0;
  release_barrier(cluster_barrier);
}

bool Block::has_ready_lanes() const {
  return std::any_of(warps_.begin(), warps_.end(), [](const auto& warp) { return warp->has_ready_lanes(); });
}

std::string Block::describe_thread(const Warp& warp, int lane) const {
  ThreadDimensions thread = thread_index(*launch_, warp.index * warp_size + static_cast<uint32_t>(lane));
  auto triple = [](const ThreadDimensions& d) {
    char text[40];
    std::snprintf(text, sizeof text, "(%u,%u,%u)", d.x, d.y, d.z);
    return std::string(text);
  };
  return "thread " + triple(thread) + " of block " + triple(index_);
}

void Block::report_fault(FaultKind kind, const Warp& warp, const Instruction& at, int lane, std::string what) {
  if (fault_) return;  // the first one counts
  fault_.kind = kind;
  fault_.message = "kernel " + launch_->kernel->name + ": " + what + "; " + describe_thread(warp, lane) +
                   ", PTX line " + std::to_string(at.line);
}

void Block::report_deadlock() {
  fault_.kind = FaultKind::deadlock;
  fault_.message = "kernel " + launch_->kernel->name + ": no thread of a block can go on";
  for (auto& warp : warps_) {
    std::string waiting = warp->describe_waiting();
    if (!waiting.empty()) fault_.message += "; " + waiting;
  }
}

std::span<std::byte> Block::shared_of_rank(uint32_t rank) {
  if (rank >= cluster_->block_count()) return {};
  MemoryView& memory = cluster_->block(rank).memory_;
  return {memory.shared, memory.shared_bytes};
}

}  // namespace fargpu::softgpu
