#include "exec/ops/collective.h"

#include <algorithm>
#include <bit>

#include "exec/warp.h"

namespace fargpu::softgpu::ops {
namespace {

/// Which lanes take part: all of those that are here give the same mask.
LaneMask members_of(Warp& warp, OperandRef operand, LaneMask lanes) {
  return warp.lanes<uint32_t>(operand)[first_lane(lanes)];
}

template <class T>
void deposit_values(Warp& warp, OperandRef operand, LaneMask lanes, Exchange& exchange) {
  const T* values = warp.lanes<T>(operand);
  for_each_lane(lanes, [&](int lane) { exchange.values.lane[lane] = values[lane]; });
}

// ---- shuffle -------------------------------------------------------------------------------------------------------

void deposit_shuffle(Warp& warp, const Instruction& instruction, LaneMask lanes, Exchange& exchange) {
  deposit_values<uint32_t>(warp, instruction.operands[2], lanes, exchange);
}

template <ShuffleMode mode>
void collect_shuffle(Warp& warp, const Instruction& instruction, LaneMask lanes, const Exchange& exchange) {
  uint32_t* result = warp.lanes<uint32_t>(instruction.operands[0]);
  const uint32_t* own = warp.lanes<uint32_t>(instruction.operands[2]);
  const uint32_t* b = warp.lanes<uint32_t>(instruction.operands[3]);
  const uint32_t* c = warp.lanes<uint32_t>(instruction.operands[4]);
  LaneMask in_range = 0;
  for_each_lane(lanes, [&](int lane) {
    int segment = static_cast<int>((c[lane] >> 8) & 0x1f);
    int clamp = static_cast<int>(c[lane] & 0x1f);
    int offset = static_cast<int>(b[lane] & 0x1f);
    int last = (lane & segment) | (clamp & ~segment);
    int first = lane & segment;
    int source;
    bool is_in_range;
    if constexpr (mode == ShuffleMode::up) {
      source = lane - offset;
      is_in_range = source >= last;
    } else if constexpr (mode == ShuffleMode::down) {
      source = lane + offset;
      is_in_range = source <= last;
    } else if constexpr (mode == ShuffleMode::butterfly) {
      source = lane ^ offset;
      is_in_range = source <= last;
    } else {
      source = first | (offset & ~segment);
      is_in_range = source <= last;
    }
    if (!is_in_range) source = lane;
    in_range |= LaneMask{is_in_range} << lane;
    // The value of a lane that does not take part is undefined; here it is the reader's own.
    result[lane] = has_lane(exchange.lanes, source) ? static_cast<uint32_t>(exchange.values.lane[source]) : own[lane];
  });
  warp.set_predicate(instruction.operands[1], lanes, in_range);
}

template <ShuffleMode mode>
const Instruction* run_shuffle(Warp& warp, const Instruction& instruction, LaneMask) {
  static constexpr Collective collective = {&deposit_shuffle, &collect_shuffle<mode>};
  return warp.run_collective(instruction, collective, instruction.operands[5]);
}

// ---- vote ----------------------------------------------------------------------------------------------------------

void deposit_vote(Warp& warp, const Instruction& instruction, LaneMask lanes, Exchange& exchange) {
  exchange.predicate |= warp.predicate(instruction.operands[1]) & lanes;
}

template <VoteMode mode>
void collect_vote(Warp& warp, const Instruction& instruction, LaneMask lanes, const Exchange& exchange) {
  LaneMask members = members_of(warp, instruction.operands[2], lanes) & exchange.lanes;
  LaneMask yes = exchange.predicate & members;
  if constexpr (mode == VoteMode::ballot) {
    uint32_t* result = warp.lanes<uint32_t>(instruction.operands[0]);
    for_each_lane(lanes, [&](int lane) { result[lane] = yes; });
  } else {
    bool holds = mode == VoteMode::all ? yes == members : mode == VoteMode::any ? yes != 0 : yes == members || yes == 0;
    warp.set_predicate(instruction.operands[0], lanes, holds ? all_lanes : 0);
  }
}

template <VoteMode mode>
const Instruction* run_vote(Warp& warp, const Instruction& instruction, LaneMask) {
  static constexpr Collective collective = {&deposit_vote, &collect_vote<mode>};
  return warp.run_collective(instruction, collective, instruction.operands[2]);
}

// ---- match ---------------------------------------------------------------------------------------------------------

template <class T>
void deposit_match(Warp& warp, const Instruction& instruction, LaneMask lanes, Exchange& exchange) {
  deposit_values<T>(warp, instruction.operands[2], lanes, exchange);
}

template <bool all>
void collect_match(Warp& warp, const Instruction& instruction, LaneMask lanes, const Exchange& exchange) {
  LaneMask members = members_of(warp, instruction.operands[3], lanes) & exchange.lanes;
  uint32_t* result = warp.lanes<uint32_t>(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) {
    LaneMask equal = 0;
    for_each_lane(members, [&](int other) {
      bool is_equal = exchange.values.lane[other] == exchange.values.lane[lane];
      equal |= LaneMask{is_equal} << other;
    });
    bool all_equal = equal == members;
    result[lane] = !all || all_equal ? equal : 0;
    if (all) warp.set_predicate(instruction.operands[1], LaneMask{1} << lane, all_equal ? all_lanes : 0);
  });
}

template <bool all, class T>
const Instruction* run_match(Warp& warp, const Instruction& instruction, LaneMask) {
  static constexpr Collective collective = {&deposit_match<T>, &collect_match<all>};
  return warp.run_collective(instruction, collective, instruction.operands[3]);
}

// ---- reduction -----------------------------------------------------------------------------------------------------

void deposit_reduce(Warp& warp, const Instruction& instruction, LaneMask lanes, Exchange& exchange) {
  deposit_values<uint32_t>(warp, instruction.operands[1], lanes, exchange);
}

template <ReduceOp op, class T>
void collect_reduce(Warp& warp, const Instruction& instruction, LaneMask lanes, const Exchange& exchange) {
  LaneMask members = members_of(warp, instruction.operands[2], lanes) & exchange.lanes;
  if (members == 0) return;
  T total = static_cast<T>(exchange.values.lane[first_lane(members)]);
  for_each_lane(members & (members - 1), [&](int lane) {
    T value = static_cast<T>(exchange.values.lane[lane]);
    switch (op) {
      case ReduceOp::add: total = static_cast<T>(static_cast<uint32_t>(total) + static_cast<uint32_t>(value)); break;
      case ReduceOp::minimum: total = std::min(total, value); break;
      case ReduceOp::maximum: total = std::max(total, value); break;
      case ReduceOp::bit_and: total &= value; break;
      case ReduceOp::bit_or: total |= value; break;
      case ReduceOp::bit_xor: total ^= value; break;
    }
  });
  T* result = warp.lanes<T>(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) { result[lane] = total; });
}

template <ReduceOp op, class T>
const Instruction* run_reduce(Warp& warp, const Instruction& instruction, LaneMask) {
  static constexpr Collective collective = {&deposit_reduce, &collect_reduce<op, T>};
  return warp.run_collective(instruction, collective, instruction.operands[2]);
}

template <ReduceOp op>
Handler reduce_of(bool is_signed) {
  return is_signed ? &run_reduce<op, int32_t> : &run_reduce<op, uint32_t>;
}

// ---- others --------------------------------------------------------------------------------------------------------

void deposit_nothing(Warp&, const Instruction&, LaneMask, Exchange&) {}

void collect_elect(Warp& warp, const Instruction& instruction, LaneMask lanes, const Exchange& exchange) {
  LaneMask members = members_of(warp, instruction.operands[2], lanes) & exchange.lanes;
  int leader = members != 0 ? first_lane(members) : 0;
  uint32_t* result = warp.lanes<uint32_t>(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) { result[lane] = static_cast<uint32_t>(leader); });
  warp.set_predicate(instruction.operands[1], lanes, LaneMask{1} << leader);
}

const Instruction* run_elect(Warp& warp, const Instruction& instruction, LaneMask) {
  static constexpr Collective collective = {&deposit_nothing, &collect_elect};
  return warp.run_collective(instruction, collective, instruction.operands[2]);
}

void collect_nothing(Warp&, const Instruction&, LaneMask, const Exchange&) {}

const Instruction* run_warp_barrier(Warp& warp, const Instruction& instruction, LaneMask) {
  static constexpr Collective collective = {&deposit_nothing, &collect_nothing};
  return warp.run_collective(instruction, collective, instruction.operands[0]);
}

const Instruction* run_active_mask(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  uint32_t* result = warp.lanes<uint32_t>(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) { result[lane] = lanes; });
  return &instruction + 1;
}

}  // namespace

Handler shuffle(ShuffleMode mode) {
  switch (mode) {
    case ShuffleMode::up: return &run_shuffle<ShuffleMode::up>;
    case ShuffleMode::down: return &run_shuffle<ShuffleMode::down>;
    case ShuffleMode::butterfly: return &run_shuffle<ShuffleMode::butterfly>;
    case ShuffleMode::index: return &run_shuffle<ShuffleMode::index>;
  }
  return nullptr;
}

Handler vote(VoteMode mode) {
  switch (mode) {
    case VoteMode::all: return &run_vote<VoteMode::all>;
    case VoteMode::any: return &run_vote<VoteMode::any>;
    case VoteMode::uniform: return &run_vote<VoteMode::uniform>;
    case VoteMode::ballot: return &run_vote<VoteMode::ballot>;
  }
  return nullptr;
}

Handler match(bool all, uint32_t bytes) {
  if (bytes == 4) return all ? &run_match<true, uint32_t> : &run_match<false, uint32_t>;
  if (bytes == 8) return all ? &run_match<true, uint64_t> : &run_match<false, uint64_t>;
  return nullptr;
}

Handler reduce(ReduceOp op, bool is_signed) {
  switch (op) {
    case ReduceOp::add: return reduce_of<ReduceOp::add>(is_signed);
    case ReduceOp::minimum: return reduce_of<ReduceOp::minimum>(is_signed);
    case ReduceOp::maximum: return reduce_of<ReduceOp::maximum>(is_signed);
    case ReduceOp::bit_and: return reduce_of<ReduceOp::bit_and>(is_signed);
    case ReduceOp::bit_or: return reduce_of<ReduceOp::bit_or>(is_signed);
    case ReduceOp::bit_xor: return reduce_of<ReduceOp::bit_xor>(is_signed);
  }
  return nullptr;
}

Handler elect() { return &run_elect; }
Handler warp_barrier() { return &run_warp_barrier; }
Handler active_mask() { return &run_active_mask; }

}  // namespace fargpu::softgpu::ops
