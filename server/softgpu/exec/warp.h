#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exec/fault.h"
#include "exec/instruction.h"
#include "exec/lanes.h"
#include "exec/memory_view.h"

namespace fargpu::softgpu {

class Block;
struct Routine;
struct Launch;

/// The registers of one call of a routine, for all lanes that are in the call.
struct Frame {
  Frame* caller = nullptr;
  const Routine* routine = nullptr;
  const Instruction* call = nullptr;  // in the caller; null for the kernel itself
  LaneMask lanes = 0;                 // that have not returned from it
  uint32_t local_base = 0;            // its part of the local memory of each lane
  const std::byte* constants = nullptr;
  std::byte* registers = nullptr;
};

/// Lanes that took different ways and meet again at `at`, the first instruction common to all
/// ways. Lanes that are there wait for the others.
struct Join {
  const Instruction* at = nullptr;
  Frame* frame = nullptr;
  LaneMask expected = 0;
  LaneMask arrived = 0;
  Join* parent = nullptr;
};

struct Collective;

/// Lanes that execute together.
struct Fragment {
  enum class State : uint8_t { ready, at_barrier, at_collective };
  LaneMask lanes = 0;
  const Instruction* next = nullptr;
  Frame* frame = nullptr;
  Join* join = nullptr;
  State state = State::ready;
  uint32_t barrier = 0;  // at_barrier: which
  LaneMask members = 0;  // at_collective: lanes that take part
  const Collective* collective = nullptr;
};

/// What lanes of a collective instruction bring along, while they come to it separately.
struct Exchange {
  Lanes<uint64_t> values;
  LaneMask predicate = 0;
  LaneMask lanes = 0;
};

/// An instruction in which lanes exchange values (PTX ISA 9.7.9 and 9.7.13: shfl.sync, vote.sync
/// and others). Lanes may come to it in several fragments, even at different places of the
/// program; all `deposit` before any may `collect`. Without `collect` all must come to the same
/// place, and `deposit` does everything for them at once.
struct Collective {
  void (*deposit)(Warp&, const Instruction&, LaneMask lanes, Exchange&);
  void (*collect)(Warp&, const Instruction&, LaneMask lanes, const Exchange&);
};

/// 32 threads of a block. Each lane follows its own way through the program; lanes at the same
/// place execute together as a fragment. When a fragment's lanes part they are expected at a Join,
/// the nearest common post-dominator. Waiting there is an optimisation that must not stop
/// progress: once the others of a warp wait for something or spin for long, the waiting lanes are
/// let go on alone. So lanes may wait for one another in any way (independent thread scheduling).
class Warp {
 public:
  enum class Outcome : uint8_t {
    finished,  // all lanes have exited
    blocked,   // all lanes wait at barriers of the block
    yielded,   // it can go on; its time was up
    faulted,
  };

  Warp(Block& block, uint32_t index, uint32_t thread_count);
  Warp(const Warp&) = delete;
  Warp& operator=(const Warp&) = delete;
  Warp(Warp&&) = default;

  /// Puts all lanes at the start of the kernel.
  void start(const Routine& kernel);
  Outcome run(int64_t fuel);

  // ---- for handlers: operands --------------------------------------------------------------------------------------

  template <class T>
  T* lanes(OperandRef operand) {
    return reinterpret_cast<T*>(banks[operand.bank()] + operand.offset());
  }
  LaneMask& predicate(OperandRef operand) { return *lanes<LaneMask>(operand); }
  void set_predicate(OperandRef operand, LaneMask where, LaneMask value) {
    LaneMask& mask = predicate(operand);
    mask = (mask & ~where) | (value & where);
  }
  /// True if values for the other lanes may be written too, because there is no thread.
  bool fills(LaneMask mask) const { return (mask | dead) == all_lanes; }

  // ---- for handlers: control flow ----------------------------------------------------------------------------------

  /// The lanes `taken` go to `target`, the other active ones to `other`; `join` is where they meet
  /// again, or null if they do not before they exit.
  const Instruction* diverge(LaneMask taken, const Instruction* target, const Instruction* other,
                             const Instruction* join);
  /// The active lanes are at an instruction where others may join them.
  const Instruction* meet(const Instruction& at);
  /// Suspends the active lanes, which go on at `next` after others had their turn.
  const Instruction* yield(const Instruction* next);
  /// Suspends lanes that only wait for others, which counts as spinning for the whole turn.
  const Instruction* sleep(const Instruction* next);
  /// Counts a jump; true if the warp's turn is over.
  bool spend_fuel() { return --fuel <= 0; }
  /// Counts an access that is typical of a thread waiting for another.
  void note_spin() {
    fuel -= spin_cost;
    ++spins_;
  }
  /// Ends the given lanes of the active ones.
  const Instruction* exit_lanes(LaneMask lanes, const Instruction* next);
  /// Suspends the active lanes until the block's barrier lets them go on behind `at`.
  const Instruction* wait_at_barrier(const Instruction& at, uint32_t barrier);
  const Instruction* run_collective(const Instruction& at, const Collective& collective, LaneMask members);
  /// A collective with `members` for each lane. Lanes that give different ones form groups of their
  /// own, as the tiles of a warp do.
  const Instruction* run_collective(const Instruction& at, const Collective& collective, OperandRef members);

  /// Enters a call: returns the callee's first instruction, or null after a stack overflow.
  const Instruction* call(const Instruction& at, const Routine& callee);
  /// The active lanes leave the running call.
  const Instruction* return_from_call();
  const Instruction* raise(FaultKind kind, const Instruction& at, int lane, std::string what);

  // ---- for the block -----------------------------------------------------------------------------------------------

  /// Makes the lanes that wait at a barrier ready again. `deliver` sees each of their
  /// instructions, with banks set up for it.
  template <class F>
  void release_barrier(uint32_t barrier, F&& deliver) {
    for (Fragment& fragment : fragments_) {
      if (fragment.state != Fragment::State::at_barrier || fragment.barrier != barrier) continue;
      fragment.state = Fragment::State::ready;
      with_frame(fragment.frame, [&] { deliver(*this, fragment.next[-1], fragment.lanes); });
    }
  }
  bool has_ready_lanes() const;
  /// True if the last turn went mostly into waiting for memory to change.
  bool was_spinning() const { return was_spinning_; }
  /// Says where lanes wait, for the message about a deadlock.
  std::string describe_waiting() const;

  const uint32_t index;         // in the block
  const uint32_t thread_count;  // lanes that are threads

  // Read by handlers all the time.
  std::byte* banks[bank_count] = {};
  LaneMask active = 0;
  LaneMask dead = 0;  // lanes that are no threads or have exited
  int64_t fuel = 0;
  Frame* frame = nullptr;
  Join* join = nullptr;
  MemoryView* memory = nullptr;
  Block* block = nullptr;
  const Launch* launch = nullptr;
  std::byte* local = nullptr;       // 32 threads' local memory, words interleaved
  uint32_t local_bytes = 0;         // of one thread
  LaneMask arrived_at_cluster = 0;  // at the barrier of the cluster, in its current phase

 private:
  static constexpr int64_t spin_cost = 64;

  bool resume();
  bool has_waiting_join() const;
  void suspend(const Instruction* next, Fragment::State state);
  void suspend_at_collective(const Instruction& at, const Collective& collective, LaneMask members);
  bool release_waiting_join();
  Join* new_join(const Instruction* at, LaneMask expected);
  void delete_join(Join* join);
  void settle_joins(Join* innermost, LaneMask gone);
  void leave_frames(LaneMask lanes);
  void settle_collectives();
  bool try_collective(size_t first);
  void enter_frame(Frame* entered);
  template <class F>
  void with_frame(Frame* other, F&& action) {
    Frame* running = frame;
    if (other != running) enter_frame(other);
    action();
    if (other != running && running != nullptr) enter_frame(running);
  }

  std::vector<Fragment> fragments_;  // suspended; the last ready one goes on first
  std::vector<Join*> joins_;         // that are in use, oldest first
  std::vector<std::unique_ptr<Join>> join_store_;
  std::vector<Join*> free_joins_;
  uint32_t spins_ = 0;
  bool was_spinning_ = false;
  uint32_t patience_ = 0;
  bool has_faulted_ = false;
};

/// Operands of the bank `warp`, equal for every block of a launch.
struct WarpRegisters {
  Lanes<uint32_t> tid_x, tid_y, tid_z;
  Lanes<uint32_t> laneid;
  Lanes<uint32_t> warpid;
  Lanes<uint32_t> lanemask_eq, lanemask_le, lanemask_lt, lanemask_ge, lanemask_gt;
  Lanes<uint64_t> sink[2];  // written by instructions whose result nobody wants
};

/// Operands of the bank `block`.
struct BlockRegisters {
  Lanes<uint32_t> ntid_x, ntid_y, ntid_z;
  Lanes<uint32_t> nctaid_x, nctaid_y, nctaid_z;
  Lanes<uint32_t> ctaid_x, ctaid_y, ctaid_z;
  Lanes<uint32_t> nwarpid;
  Lanes<uint32_t> smid, nsmid;
  Lanes<uint64_t> gridid;
  Lanes<uint32_t> clusterid_x, clusterid_y, clusterid_z;
  Lanes<uint32_t> nclusterid_x, nclusterid_y, nclusterid_z;
  Lanes<uint32_t> cluster_ctaid_x, cluster_ctaid_y, cluster_ctaid_z;
  Lanes<uint32_t> cluster_nctaid_x, cluster_nctaid_y, cluster_nctaid_z;
  Lanes<uint32_t> cluster_ctarank, cluster_nctarank;
  Lanes<uint32_t> is_explicit_cluster;  // 0 or 1
  Lanes<uint32_t> total_smem_size, dynamic_smem_size, aggr_smem_size;
  Lanes<uint32_t> envreg1, envreg2;  // address of a cooperative launch's workspace
  Lanes<uint32_t> zero;
};

}  // namespace fargpu::softgpu
