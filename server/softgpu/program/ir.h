#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exec/instruction.h"
#include "exec/routine.h"

// The intermediate form of one routine: instructions with handlers, but virtual registers and
// labels where the executable form has places in the frame and distances.

namespace fargpu::softgpu::program {

inline constexpr uint32_t none = UINT32_MAX;

/// An operand: a virtual register, or a fixed place in a bank.
struct Value {
  enum class Kind : uint8_t { absent, virtual_register, constant, warp_register, block_register };
  Kind kind = Kind::absent;
  uint32_t index = 0;  // of the virtual register, or the byte offset in the bank
};

enum class Flow : uint8_t {
  next,        // goes on behind the instruction
  jump,        // to IrInstruction::target
  jump_table,  // to one of IrInstruction::targets
  exit,        // ends the thread
  give_back,   // returns from a function
  stop,        // does not come back: a trap
};

struct IrInstruction {
  Handler run = nullptr;
  Flow flow = Flow::next;
  uint8_t definition_count = 0;  // leading operands that are written
  uint8_t operand_count = 0;
  bool is_guard_negated = false;
  uint32_t guard = none;  // virtual register
  uint32_t line = 0;
  uint32_t flags = 0;
  uint32_t target = none;  // label
  int64_t immediate = 0;
  std::array<Value, Instruction::operand_count> operands;
  std::vector<uint32_t> targets;
  std::shared_ptr<const void> details;
  /// Registers that `details` names as further operands, beyond those that fit an instruction.
  std::vector<Value> more_definitions;
  std::vector<Value> more_uses;
};

/// A virtual register's size: 0 for predicates, which take one bit per lane.
struct VirtualRegister {
  uint8_t bytes = 0;
};

/// A routine under construction.
class IrFunction {
 public:
  Value new_register(uint32_t bytes) {
    registers_.push_back({static_cast<uint8_t>(bytes)});
    return {Value::Kind::virtual_register, static_cast<uint32_t>(registers_.size() - 1)};
  }
  Value new_predicate() { return new_register(0); }
  uint32_t bytes_of(uint32_t register_index) const { return registers_[register_index].bytes; }
  const std::vector<VirtualRegister>& registers() const { return registers_; }

  /// A value that has these bits in all lanes.
  Value constant(uint64_t bits, uint32_t bytes);
  Value constant_128(uint64_t low, uint64_t high);
  /// An all-true or all-false predicate.
  Value constant_predicate(bool value);
  /// An address known once the program is loaded, plus an addend.
  Value relocated(ConstantRelocation::Kind kind, uint32_t index, int64_t addend, uint32_t bytes);

  uint32_t new_label() {
    label_positions_.push_back(none);
    return static_cast<uint32_t>(label_positions_.size() - 1);
  }
  void place_label(uint32_t label) { label_positions_[label] = static_cast<uint32_t>(instructions_.size()); }
  uint32_t label_position(uint32_t label) const { return label_positions_[label]; }

  IrInstruction& append(IrInstruction instruction) {
    instructions_.push_back(std::move(instruction));
    return instructions_.back();
  }
  std::vector<IrInstruction>& instructions() { return instructions_; }
  const std::vector<IrInstruction>& instructions() const { return instructions_; }

  const std::vector<std::byte>& constants() const { return constants_; }
  const std::vector<ConstantRelocation>& relocations() const { return relocations_; }

 private:
  uint32_t append_constant(const void* lane_value, uint32_t bytes);

  std::vector<VirtualRegister> registers_;
  std::vector<IrInstruction> instructions_;
  std::vector<uint32_t> label_positions_;
  std::vector<std::byte> constants_;
  std::vector<ConstantRelocation> relocations_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> constant_offsets_;
};

}  // namespace fargpu::softgpu::program
