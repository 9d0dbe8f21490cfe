#include "program/assemble.h"

#include <algorithm>

#include "exec/ops/control.h"
#include "program/control_flow.h"
#include "program/register_allocation.h"

namespace fargpu::softgpu::program {
namespace {

class Assembler {
 public:
  Assembler(IrFunction& function, Routine& routine)
      : function_(function),
        routine_(routine),
        flow_(analyze_control_flow(function, routine.is_kernel)),
        registers_(allocate_registers(function, flow_)) {}

  void run() {
    place_blocks();
    for (uint32_t b = 0; b < flow_.blocks.size(); ++b) {
      const BasicBlock& block = flow_.blocks[b];
      if (!block.is_reachable) continue;
      if (is_meeting_[b]) routine_.code.push_back({.run = ops::meet()});
      for (uint32_t i = block.first; i < block.last; ++i) add(function_.instructions()[i], block);
    }
    routine_.constants = function_.constants();
    routine_.relocations = function_.relocations();
    routine_.frame_bytes = registers_.frame_bytes;
    // Eight more than the values held, for addresses and the like that ptxas adds.
    routine_.register_count =
        std::min(std::max<uint32_t>(registers_.live_bytes_max / 4 + 8, 16), routine_.register_count_max);
  }

 private:
  void place_blocks() {
    is_meeting_.assign(flow_.blocks.size(), false);
    for (const BasicBlock& block : flow_.blocks) {
      const IrInstruction& end = function_.instructions()[block.last - 1];
      bool can_part = end.flow == Flow::jump_table || (end.flow == Flow::jump && end.guard != none);
      if (block.is_reachable && can_part && block.meeting != none) is_meeting_[block.meeting] = true;
    }
    position_of_block_.assign(flow_.blocks.size(), none);
    uint32_t position = 0;
    for (uint32_t b = 0; b < flow_.blocks.size(); ++b) {
      if (!flow_.blocks[b].is_reachable) continue;
      position_of_block_[b] = position;
      position += is_meeting_[b] + (flow_.blocks[b].last - flow_.blocks[b].first);
    }
    routine_.code.reserve(position);
  }

  OperandRef place(const Value& value) const {
    switch (value.kind) {
      case Value::Kind::virtual_register: return OperandRef::make(Bank::frame, registers_.offsets[value.index]);
      case Value::Kind::constant: return OperandRef::make(Bank::constants, value.index);
      case Value::Kind::warp_register: return OperandRef::make(Bank::warp, value.index);
      case Value::Kind::block_register: return OperandRef::make(Bank::block, value.index);
      case Value::Kind::absent: break;
    }
    return {};
  }

  int32_t distance_to(uint32_t block) const {
    return static_cast<int32_t>(position_of_block_[block]) - static_cast<int32_t>(routine_.code.size());
  }
  int32_t distance_to_label(uint32_t label) const {
    return distance_to(flow_.block_of_instruction[function_.label_position(label)]);
  }

  void add(IrInstruction& from, const BasicBlock& block) {
    Instruction to;
    to.run = from.run;
    to.immediate = from.immediate;
    to.flags = from.flags;
    to.line = from.line;
    for (int i = 0; i < from.operand_count; ++i) to.operands[i] = place(from.operands[i]);
    if (from.guard != none) to.guard = registers_.offsets[from.guard] | (from.is_guard_negated ? 1 : 0);
    if (from.flow == Flow::jump || from.flow == Flow::jump_table)
      to.flags = static_cast<uint32_t>(block.meeting == none ? ops::no_join : distance_to(block.meeting));
    if (from.flow == Flow::jump) to.immediate = distance_to_label(from.target);
    if (from.flow == Flow::jump_table) {
      auto table = std::make_shared<ops::BranchTable>();
      for (uint32_t label : from.targets) table->targets.push_back(distance_to_label(label));
      from.details = std::move(table);
    }
    if (!from.more_definitions.empty() || !from.more_uses.empty()) {
      auto more = std::make_shared<MoreOperands>();
      for (const Value& value : from.more_definitions) more->operands.push_back(place(value));
      for (const Value& value : from.more_uses) more->operands.push_back(place(value));
      more->details = std::move(from.details);
      from.details = std::move(more);
    }
    if (from.details != nullptr) {
      to.details = from.details.get();
      routine_.details.push_back(std::move(from.details));
    }
    routine_.code.push_back(to);
  }

  IrFunction& function_;
  Routine& routine_;
  ControlFlow flow_;
  RegisterAllocation registers_;
  std::vector<bool> is_meeting_;
  std::vector<uint32_t> position_of_block_;
};

}  // namespace

void assemble(IrFunction& function, Routine& routine) { Assembler(function, routine).run(); }

}  // namespace fargpu::softgpu::program
