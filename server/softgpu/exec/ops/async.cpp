#include "exec/ops/async.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "exec/memory_access.h"
#include "exec/warp.h"

namespace fargpu::softgpu::ops {
namespace {

const Instruction* run_copy_async(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const uint64_t* to = warp.lanes<uint64_t>(instruction.operands[0]);
  const uint64_t* from = warp.lanes<uint64_t>(instruction.operands[1]);
  const uint32_t* wanted = warp.lanes<uint32_t>(instruction.operands[2]);
  uint64_t bytes = static_cast<uint64_t>(instruction.immediate);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    std::array<std::byte, 16> piece = {};
    uint64_t read = std::min<uint64_t>(wanted[lane], bytes);
    if ((to[lane] | (read != 0 ? from[lane] : 0)) % bytes != 0)
      return warp.raise(FaultKind::misaligned_address, instruction, lane, "misaligned address of an asynchronous copy");
    if (!read_generic(warp, instruction, lane, from[lane], piece.data(), read) ||
        !write_generic(warp, instruction, lane, to[lane], piece.data(), bytes))
      return nullptr;
  }
  return &instruction + 1;
}

/// The opaque 64-bit object as this device keeps it: arrivals the phase still waits for, arrivals
/// of the next phase, bytes still expected, and the parity of the phase.
struct BarrierObject {
  uint32_t pending = 0;
  uint32_t expected = 0;
  int32_t pending_bytes = 0;
  bool parity = false;

  static constexpr uint32_t count_bits = 20;
  static constexpr uint64_t count_mask = (uint64_t{1} << count_bits) - 1;
  static constexpr uint32_t bytes_shift = 2 * count_bits;
  static constexpr uint32_t bytes_bits = 23;

  static BarrierObject decode(uint64_t bits) {
    uint64_t bytes = (bits >> bytes_shift) & ((uint64_t{1} << bytes_bits) - 1);
    int32_t sign_extended =
        static_cast<int32_t>(static_cast<uint32_t>(bytes) << (32 - bytes_bits)) >> (32 - bytes_bits);
    return {static_cast<uint32_t>(bits & count_mask), static_cast<uint32_t>(bits >> count_bits & count_mask),
            sign_extended, static_cast<bool>(bits >> 63)};
  }
  uint64_t encode() const {
    uint64_t bytes = static_cast<uint32_t>(pending_bytes) & ((uint64_t{1} << bytes_bits) - 1);
    return (pending & count_mask) | (expected & count_mask) << count_bits | bytes << bytes_shift |
           uint64_t{parity} << 63;
  }
  void settle() {
    if (pending != 0 || pending_bytes != 0) return;
    parity = !parity;
    pending = expected;
  }
};

/// Replaces the object at an address by what `change` makes of it. False after raising a fault.
template <class Change>
bool change_object(Warp& warp, const Instruction& at, int lane, uint64_t address, Change change) {
  if (address % 8 != 0) {
    warp.raise(FaultKind::misaligned_address, at, lane, "misaligned address of an mbarrier");
    return false;
  }
  uint64_t bits = 0;
  if (!read_generic(warp, at, lane, address, &bits, sizeof bits)) return false;
  BarrierObject object = BarrierObject::decode(bits);
  change(object, bits);
  bits = object.encode();
  return write_generic(warp, at, lane, address, &bits, sizeof bits);
}

const Instruction* run_copy_bulk(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const uint64_t* to = warp.lanes<uint64_t>(instruction.operands[0]);
  const uint64_t* from = warp.lanes<uint64_t>(instruction.operands[1]);
  const uint32_t* bytes = warp.lanes<uint32_t>(instruction.operands[2]);
  const uint64_t* barrier = warp.lanes<uint64_t>(instruction.operands[3]);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    if ((to[lane] | from[lane] | bytes[lane]) % 16 != 0)
      return warp.raise(FaultKind::misaligned_address, instruction, lane, "bulk copy that is not aligned to 16 bytes");
    std::array<std::byte, 4096> piece;
    for (uint32_t done = 0; done < bytes[lane]; done += sizeof piece) {
      uint64_t length = std::min<uint64_t>(sizeof piece, bytes[lane] - done);
      if (!read_generic(warp, instruction, lane, from[lane] + done, piece.data(), length) ||
          !write_generic(warp, instruction, lane, to[lane] + done, piece.data(), length))
        return nullptr;
    }
    if (!(instruction.flags & 1)) continue;
    bool is_done = change_object(warp, instruction, lane, barrier[lane], [&](BarrierObject& object, uint64_t) {
      object.pending_bytes -= static_cast<int32_t>(bytes[lane]);
      object.settle();
    });
    if (!is_done) return nullptr;
  }
  return &instruction + 1;
}

const Instruction* run_init(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const uint64_t* address = warp.lanes<uint64_t>(instruction.operands[0]);
  const uint32_t* count = warp.lanes<uint32_t>(instruction.operands[1]);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    auto set = [&](BarrierObject& object, uint64_t) { object = {.pending = count[lane], .expected = count[lane]}; };
    if (!change_object(warp, instruction, lane, address[lane], set)) return nullptr;
  }
  return &instruction + 1;
}

template <BarrierObjectOp op>
const Instruction* run_arrive(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  uint64_t* state = warp.lanes<uint64_t>(instruction.operands[0]);
  const uint64_t* address = warp.lanes<uint64_t>(instruction.operands[1]);
  const uint32_t* count = warp.lanes<uint32_t>(instruction.operands[2]);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    uint32_t amount = count[lane];
    bool is_done = change_object(warp, instruction, lane, address[lane], [&](BarrierObject& object, uint64_t before) {
      state[lane] = before;
      if constexpr (op == BarrierObjectOp::arrive_expect) {
        object.pending_bytes += static_cast<int32_t>(amount);
        object.pending -= 1;
      } else {
        if constexpr (op == BarrierObjectOp::arrive_drop) object.expected -= amount;
        object.pending -= amount;
      }
      object.settle();
    });
    if (!is_done) return nullptr;
  }
  return &instruction + 1;
}

template <int sign>
const Instruction* run_change_bytes(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const uint64_t* address = warp.lanes<uint64_t>(instruction.operands[0]);
  const uint32_t* bytes = warp.lanes<uint32_t>(instruction.operands[1]);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    auto change = [&](BarrierObject& object, uint64_t) {
      object.pending_bytes += sign * static_cast<int32_t>(bytes[lane]);
      if (sign < 0) object.settle();
    };
    if (!change_object(warp, instruction, lane, address[lane], change)) return nullptr;
  }
  return &instruction + 1;
}

template <bool by_parity>
const Instruction* run_test(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const uint64_t* address = warp.lanes<uint64_t>(instruction.operands[1]);
  LaneMask completed = 0;
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    uint64_t bits = 0;
    if (!read_generic(warp, instruction, lane, address[lane], &bits, sizeof bits)) return nullptr;
    bool awaited;
    if constexpr (by_parity) awaited = warp.lanes<uint32_t>(instruction.operands[2])[lane] & 1;
    else awaited = BarrierObject::decode(warp.lanes<uint64_t>(instruction.operands[2])[lane]).parity;
    bool is_completed = BarrierObject::decode(bits).parity != awaited;
    completed |= LaneMask{is_completed} << lane;
  }
  warp.set_predicate(instruction.operands[0], lanes, completed);
  warp.note_spin();
  return &instruction + 1;
}

const Instruction* run_pending_count(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  uint32_t* count = warp.lanes<uint32_t>(instruction.operands[0]);
  const uint64_t* state = warp.lanes<uint64_t>(instruction.operands[1]);
  for_each_lane(lanes, [&](int lane) { count[lane] = BarrierObject::decode(state[lane]).pending; });
  return &instruction + 1;
}

const Instruction* run_invalidate(Warp&, const Instruction& instruction, LaneMask) { return &instruction + 1; }

}  // namespace

Handler copy_async() { return &run_copy_async; }
Handler copy_bulk() { return &run_copy_bulk; }

Handler barrier_object(BarrierObjectOp op) {
  switch (op) {
    case BarrierObjectOp::init: return &run_init;
    case BarrierObjectOp::invalidate: return &run_invalidate;
    case BarrierObjectOp::arrive: return &run_arrive<BarrierObjectOp::arrive>;
    case BarrierObjectOp::arrive_drop: return &run_arrive<BarrierObjectOp::arrive_drop>;
    case BarrierObjectOp::arrive_expect: return &run_arrive<BarrierObjectOp::arrive_expect>;
    case BarrierObjectOp::expect: return &run_change_bytes<1>;
    case BarrierObjectOp::complete: return &run_change_bytes<-1>;
    case BarrierObjectOp::test: return &run_test<false>;
    case BarrierObjectOp::test_parity: return &run_test<true>;
    case BarrierObjectOp::pending_count: return &run_pending_count;
  }
  return nullptr;
}

}  // namespace fargpu::softgpu::ops
