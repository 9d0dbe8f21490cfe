#include "exec/warp.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "exec/block.h"
#include "exec/launch.h"
#include "exec/routine.h"

namespace fargpu::softgpu {
namespace {

// Turns that waiting lanes leave to the others of their warp before they go on alone. A turn in
// which the others only looked at memory or tried atomics again and again counts much more.
constexpr uint32_t patience_max = 16;

}  // namespace

Warp::Warp(Block& owner, uint32_t index, uint32_t thread_count)
    : index(index), thread_count(thread_count), block(&owner) {}

void Warp::start(const Routine& kernel) {
  fragments_.clear();
  for (Join* waiting : joins_) free_joins_.push_back(waiting);
  joins_.clear();
  patience_ = 0;
  has_faulted_ = false;
  arrived_at_cluster = 0;
  active = 0;
  join = nullptr;
  dead = ~first_lanes(thread_count);
  Frame* root = block->frames().acquire(kernel);
  root->lanes = first_lanes(thread_count);
  root->constants = launch->constants[kernel.index];
  frame = nullptr;
  fragments_.push_back({.lanes = root->lanes, .next = kernel.code.data(), .frame = root});
}

Warp::Outcome Warp::run(int64_t budget) {
  fuel = budget;
  spins_ = 0;
  was_spinning_ = false;
  while (resume()) {
    const Instruction* next = fragments_.back().next;
    fragments_.pop_back();
    while (next != nullptr) {
      LaneMask lanes = active;
      if (next->guard != Instruction::no_guard) {
        LaneMask guard = *reinterpret_cast<LaneMask*>(banks[0] + (next->guard & ~1u));
        lanes &= next->guard & 1 ? ~guard : guard;
        if (lanes == 0) {
          ++next;
          continue;
        }
      }
      next = next->run(*this, *next, lanes);
    }
    if (has_faulted_) return Outcome::faulted;
    if (fuel > 0) continue;

    was_spinning_ = spins_ * spin_cost * 2 > budget;
    patience_ = has_waiting_join() ? patience_ + (was_spinning_ ? patience_max : 1) : 0;
    if (patience_ >= patience_max) {
      patience_ = 0;
      release_waiting_join();
    }
    return Outcome::yielded;
  }
  return fragments_.empty() ? Outcome::finished : Outcome::blocked;
}

/// Makes the last ready fragment the active one and leaves it at the back of the list.
bool Warp::resume() {
  auto is_ready = [](const Fragment& f) { return f.state == Fragment::State::ready; };
  auto found = std::find_if(fragments_.rbegin(), fragments_.rend(), is_ready);
  if (found == fragments_.rend()) {
    if (!release_waiting_join()) return false;
    found = fragments_.rbegin();
  }
  Fragment chosen = *found;
  fragments_.erase(std::next(found).base());
  // Fragments that have come to the same place by chance go on together.
  std::erase_if(fragments_, [&](const Fragment& other) {
    bool is_same_place =
        is_ready(other) && other.next == chosen.next && other.frame == chosen.frame && other.join == chosen.join;
    if (is_same_place) chosen.lanes |= other.lanes;
    return is_same_place;
  });
  fragments_.push_back(chosen);
  active = chosen.lanes;
  join = chosen.join;
  enter_frame(chosen.frame);
  return true;
}

void Warp::enter_frame(Frame* entered) {
  frame = entered;
  banks[static_cast<int>(Bank::frame)] = entered->registers;
  banks[static_cast<int>(Bank::constants)] = const_cast<std::byte*>(entered->constants);
}

Join* Warp::new_join(const Instruction* at, LaneMask expected) {
  if (free_joins_.empty()) {
    join_store_.push_back(std::make_unique<Join>());
    free_joins_.push_back(join_store_.back().get());
  }
  Join* created = free_joins_.back();
  free_joins_.pop_back();
  *created = {.at = at, .frame = frame, .expected = expected, .parent = join};
  joins_.push_back(created);
  return created;
}

void Warp::delete_join(Join* done) {
  joins_.erase(std::find(joins_.begin(), joins_.end(), done));
  free_joins_.push_back(done);
}

const Instruction* Warp::diverge(LaneMask taken, const Instruction* target, const Instruction* other,
                                 const Instruction* join_at) {
  // A loop that lanes leave one after the other meets at one place: one Join serves all rounds.
  bool is_joined = join_at == nullptr || (join != nullptr && join->at == join_at && join->frame == frame);
  if (!is_joined) join = new_join(join_at, active);
  active &= ~taken;
  if (join_at != nullptr && target == join_at) join->arrived |= taken;
  else fragments_.push_back({.lanes = taken, .next = target, .frame = frame, .join = join});
  return other;
}

const Instruction* Warp::meet(const Instruction& at) {
  while (join != nullptr && join->at == &at && join->frame == frame) {
    join->arrived |= active;
    if (join->arrived != join->expected) {
      active = 0;
      return nullptr;
    }
    active = join->arrived;
    Join* done = join;
    join = done->parent;
    delete_join(done);
  }
  return &at + 1;
}

bool Warp::has_waiting_join() const {
  return std::any_of(joins_.begin(), joins_.end(), [](const Join* waiting) { return waiting->arrived != 0; });
}

/// Lets lanes that wait for others of their warp go on without them.
bool Warp::release_waiting_join() {
  for (auto it = joins_.rbegin(); it != joins_.rend(); ++it) {
    Join* waiting = *it;
    if (waiting->arrived == 0) continue;
    fragments_.push_back(
        {.lanes = waiting->arrived, .next = waiting->at, .frame = waiting->frame, .join = waiting->parent});
    waiting->expected &= ~waiting->arrived;
    waiting->arrived = 0;
    if (waiting->expected == 0) delete_join(waiting);
    return true;
  }
  return false;
}

void Warp::suspend(const Instruction* next, Fragment::State state) {
  fragments_.push_back({.lanes = active, .next = next, .frame = frame, .join = join, .state = state});
  active = 0;
}

const Instruction* Warp::yield(const Instruction* next) {
  suspend(next, Fragment::State::ready);
  // To the front, so that every other ready fragment has its turn before.
  std::rotate(fragments_.begin(), fragments_.end() - 1, fragments_.end());
  fuel = 0;
  return nullptr;
}

const Instruction* Warp::sleep(const Instruction* next) {
  spins_ = std::numeric_limits<uint32_t>::max() / (2 * spin_cost);
  return yield(next);
}

const Instruction* Warp::exit_lanes(LaneMask lanes, const Instruction* next) {
  active &= ~lanes;
  dead |= lanes;
  settle_joins(join, lanes);
  leave_frames(lanes);
  settle_collectives();
  block->threads_exited(std::popcount(lanes));
  return active != 0 ? next : nullptr;
}

void Warp::settle_joins(Join* innermost, LaneMask gone) {
  for (Join* current = innermost; current != nullptr;) {
    Join* parent = current->parent;
    current->expected &= ~gone;
    if (current->expected == 0) {
      delete_join(current);
    } else if (current->arrived == current->expected) {
      fragments_.push_back({.lanes = current->arrived, .next = current->at, .frame = current->frame, .join = parent});
      delete_join(current);
    }
    current = parent;
  }
}

void Warp::leave_frames(LaneMask lanes) {
  for (Frame* current = frame; current != nullptr;) {
    Frame* caller = current->caller;
    current->lanes &= ~lanes;
    if (current->lanes == 0) block->frames().release(current);
    current = caller;
  }
}

const Instruction* Warp::wait_at_barrier(const Instruction& at, uint32_t barrier) {
  suspend(&at + 1, Fragment::State::at_barrier);
  fragments_.back().barrier = barrier;
  return nullptr;
}

void Warp::suspend_at_collective(const Instruction& at, const Collective& collective, LaneMask members) {
  suspend(&at, Fragment::State::at_collective);
  fragments_.back().members = members;
  fragments_.back().collective = &collective;
}

const Instruction* Warp::run_collective(const Instruction& at, const Collective& collective, LaneMask members) {
  if ((members & ~dead & ~active) == 0) {
    Exchange exchange;
    exchange.lanes = active;
    collective.deposit(*this, at, active, exchange);
    if (collective.collect != nullptr) collective.collect(*this, at, active, exchange);
    return has_faulted_ ? nullptr : &at + 1;
  }
  suspend_at_collective(at, collective, members);
  try_collective(fragments_.size() - 1);
  return nullptr;
}

const Instruction* Warp::run_collective(const Instruction& at, const Collective& collective, OperandRef members) {
  const uint32_t* masks = lanes<uint32_t>(members);
  auto sharing_mask = [&](LaneMask among) {
    LaneMask mask = masks[first_lane(among)], sharing = 0;
    for_each_lane(among, [&](int lane) { sharing |= LaneMask{masks[lane] == mask} << lane; });
    return sharing;
  };
  LaneMask group = sharing_mask(active);
  if (group == active) return run_collective(at, collective, LaneMask{masks[first_lane(active)]});
  for (LaneMask rest = active; rest != 0; rest &= ~group) {
    active = group = sharing_mask(rest);
    suspend_at_collective(at, collective, masks[first_lane(group)]);
  }
  settle_collectives();
  return nullptr;
}

void Warp::settle_collectives() {
  for (size_t i = 0; i < fragments_.size(); ++i)
    if (fragments_[i].state == Fragment::State::at_collective) try_collective(i);
}

/// Executes the collective that a fragment waits for, if all its members are there.
bool Warp::try_collective(size_t first) {
  const Fragment sample = fragments_[first];
  auto takes_part = [&](const Fragment& other) {
    return other.state == Fragment::State::at_collective && other.members == sample.members &&
           other.collective == sample.collective;
  };
  Exchange exchange;
  bool is_one_place = true;
  for (const Fragment& other : fragments_) {
    if (!takes_part(other)) continue;
    exchange.lanes |= other.lanes;
    is_one_place &= other.next == sample.next && other.frame == sample.frame;
  }
  if ((sample.members & ~dead & ~exchange.lanes) != 0) return false;
  if (sample.collective->collect == nullptr) {
    if (!is_one_place) return false;
    with_frame(sample.frame, [&] { sample.collective->deposit(*this, *sample.next, exchange.lanes, exchange); });
  } else {
    for (const Fragment& other : fragments_)
      if (takes_part(other))
        with_frame(other.frame, [&] { sample.collective->deposit(*this, *other.next, other.lanes, exchange); });
    for (const Fragment& other : fragments_)
      if (takes_part(other))
        with_frame(other.frame, [&] { sample.collective->collect(*this, *other.next, other.lanes, exchange); });
  }
  for (Fragment& other : fragments_) {
    if (!takes_part(other)) continue;
    other.state = Fragment::State::ready;
    ++other.next;
  }
  return true;
}

const Instruction* Warp::call(const Instruction& at, const Routine& callee) {
  uint32_t local_base = frame->local_base + frame->routine->local_bytes;
  if (uint64_t{local_base} + callee.local_bytes > local_bytes)
    return raise(FaultKind::stack_overflow, at, first_lane(active), "stack overflow at the call of " + callee.name);
  Frame* entered = block->frames().acquire(callee);
  entered->caller = frame;
  entered->call = &at;
  entered->lanes = active;
  entered->local_base = local_base;
  entered->constants = launch->constants[callee.index];
  enter_frame(entered);
  return callee.code.data();
}

const Instruction* Warp::return_from_call() {
  Frame* left = frame;
  const Instruction* next = left->call + 1;
  enter_frame(left->caller);
  left->lanes &= ~active;
  if (left->lanes == 0) block->frames().release(left);
  return next;
}

const Instruction* Warp::raise(FaultKind kind, const Instruction& at, int lane, std::string what) {
  block->report_fault(kind, *this, at, lane, std::move(what));
  has_faulted_ = true;
  active = 0;
  return nullptr;
}

bool Warp::has_ready_lanes() const {
  return std::any_of(fragments_.begin(), fragments_.end(),
                     [](const Fragment& fragment) { return fragment.state == Fragment::State::ready; });
}

std::string Warp::describe_waiting() const {
  std::string text;
  for (const Fragment& fragment : fragments_) {
    bool is_barrier = fragment.state == Fragment::State::at_barrier;
    const Instruction& at = is_barrier ? fragment.next[-1] : *fragment.next;
    char lanes[16];
    std::snprintf(lanes, sizeof lanes, "%#x", fragment.lanes);
    text += text.empty() ? "" : "; ";
    text += "lanes " + std::string(lanes) + " of warp " + std::to_string(index) + " wait at " +
            (is_barrier ? "a barrier" : "an instruction for other lanes") + " (PTX line " + std::to_string(at.line) +
            ")";
  }
  return text;
}

}  // namespace fargpu::softgpu
