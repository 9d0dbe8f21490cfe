#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "exec/memory_access.h"
#include "exec/program.h"
#include "program/error.h"
#include "program/ir.h"
#include "ptx/module.h"

namespace fargpu::softgpu::program {

/// What names of module scope stand for.
struct Symbols {
  std::unordered_map<std::string_view, uint32_t> functions;  // index of Program::routines
  std::unordered_map<std::string_view, uint32_t> globals;    // of Program::globals
  std::unordered_map<std::string_view, uint32_t> shared;     // of Program::shared
};

/// An address operand: base value plus offset in a space.
struct Address {
  MemorySpace space = MemorySpace::generic;
  AddressKind kind = AddressKind::register_64;
  Value base;
  int64_t offset = 0;
};

/// Translates the body of one function. One instruction is at hand at a time; the functions that
/// translate the families of instructions (lower_*.cpp) consume its modifiers, read its operands
/// and emit what executes it. A modifier that nobody consumed makes the instruction unsupported,
/// so none is ever ignored.
class Lowering {
 public:
  Lowering(Program& program, const Symbols& symbols, const ptx::Module& module, const ptx::Function& source,
           Routine& routine);

  /// Fills the routine; throws Unsupported, or ptx::SyntaxError.
  void run();

  // ---- the instruction at hand -------------------------------------------------------------------------------------

  const ptx::Instruction& instruction() const { return *instruction_; }
  size_t operand_count() const { return instruction_->operands.size(); }
  const ptx::Operand& operand(size_t index) const;
  /// Fails unless the instruction has between least and most operands.
  void expect_operands(size_t least, size_t most);
  void expect_operands(size_t count) { expect_operands(count, count); }

  /// Consumes a modifier if it is there.
  bool take(std::string_view modifier);
  /// Consumes one of the modifiers and gives its position in the list, or -1.
  int take_one_of(std::initializer_list<std::string_view> modifiers);
  /// Consumes the first type that is left.
  ptx::Type take_type();
  std::optional<ptx::Type> try_take_type();
  /// Consumes every modifier of the list.
  void ignore(std::initializer_list<std::string_view> modifiers);
  /// Modifiers not consumed yet, in order.
  std::string_view next_modifier() const;

  [[noreturn]] void fail(const std::string& reason) const;  // not valid PTX
  [[noreturn]] void unsupported(const std::string& reason = {}) const;

  // ---- operands ----------------------------------------------------------------------------------------------------

  /// A source of the given type. Registers must have its size; wider ones are cut if `may_cut`.
  Value source(const ptx::Operand& operand, ptx::Type type, bool may_cut = false);
  Value source(size_t index, ptx::Type type) { return source(operand(index), type); }
  Value source_predicate(const ptx::Operand& operand);
  /// A register of exactly the size of the type, or the sink.
  Value destination(const ptx::Operand& operand, ptx::Type type);
  Value destination(size_t index, ptx::Type type) { return destination(operand(index), type); }
  Value destination_predicate(const ptx::Operand& operand);
  /// Bytes of the register an operand names; 0 if it is none.
  uint32_t register_bytes(const ptx::Operand& operand) const;
  ptx::Type register_type(const ptx::Operand& operand) const;
  Value sink() const;
  /// Resolves an address in the space that the instruction names.
  Address address(const ptx::Operand& operand, ptx::Space space);
  /// The address of a variable or function as a value of the given size.
  Value address_value(const ptx::Operand& operand, uint32_t bytes);
  uint32_t immediate(const ptx::Operand& operand) const;

  // ---- output ------------------------------------------------------------------------------------------------------

  IrFunction& ir() { return ir_; }
  Value new_register(uint32_t bytes) { return ir_.new_register(bytes); }
  Value new_predicate() { return ir_.new_predicate(); }
  Value constant(uint64_t bits, uint32_t bytes) { return ir_.constant(bits, bytes); }
  /// Appends an instruction under the guard of the one at hand. A null handler makes that one
  /// unsupported.
  IrInstruction& emit(Handler run, std::initializer_list<Value> definitions, std::initializer_list<Value> uses);
  IrInstruction& emit(Handler run, const std::vector<Value>& definitions, const std::vector<Value>& uses);
  /// Emits an instruction with all operands, and what the handler needs besides, in MoreOperands.
  IrInstruction& emit_with_details(Handler run, const std::vector<Value>& definitions, const std::vector<Value>& uses,
                                   std::shared_ptr<const void> details);
  Value negated(Value predicate);
  /// Space in the local memory of the frame.
  uint32_t reserve_local(uint32_t bytes, uint32_t align);

  // ---- around the instruction --------------------------------------------------------------------------------------

  const ptx::Module& module() const { return module_; }
  const ptx::Function& function() const { return source_; }
  Routine& routine() { return routine_; }
  Program& program() { return program_; }
  const Symbols& symbols() const { return symbols_; }
  uint32_t label(uint32_t source_label) const { return labels_[source_label]; }
  /// The label of the one place where a function returns.
  uint32_t return_label() const { return return_label_; }
  uint32_t variable_offset(uint32_t variable) const { return variables_[variable].offset; }
  Value carry_flag();

 private:
  enum class Storage : uint8_t { kernel_parameter, frame, shared, global };
  struct VariablePlace {
    Storage storage = Storage::frame;
    uint32_t offset = 0;  // or the index of a shared or global variable
  };

  void place_variables();
  void lay_out_parameters(const std::vector<ptx::Variable>& parameters, std::vector<ParameterLayout>& layouts);
  void load_register_parameters();
  void lower_instruction(const ptx::Instruction& instruction);
  void lower_return_place();
  IrInstruction& append(Handler run);
  Value register_value(uint32_t index) const { return registers_[index]; }
  std::optional<Value> special_register(std::string_view name, uint32_t bytes);
  Value shared_address(uint32_t index, int64_t offset, uint32_t bytes);
  Value local_address(int64_t offset, uint32_t bytes);
  std::string text_of_instruction() const;

  Program& program_;
  const Symbols& symbols_;
  const ptx::Module& module_;
  const ptx::Function& source_;
  Routine& routine_;
  IrFunction ir_;
  std::vector<Value> registers_;          // of the source's registers
  std::vector<VariablePlace> variables_;  // of the source's variables
  std::vector<uint32_t> labels_;
  uint32_t return_label_ = none;
  std::optional<Value> carry_flag_;

  const ptx::Instruction* instruction_ = nullptr;
  std::vector<bool> is_taken_;  // of its modifiers
  uint32_t guard_ = none;
  bool is_guard_negated_ = false;
};

using LowerFunction = void (*)(Lowering&);
using LoweringTable = std::unordered_map<std::string_view, LowerFunction>;

/// How each opcode is translated.
const LoweringTable& lowering_table();
void add_integer_lowering(LoweringTable& table);
void add_float_lowering(LoweringTable& table);
void add_compare_lowering(LoweringTable& table);
void add_move_lowering(LoweringTable& table);
void add_memory_lowering(LoweringTable& table);
void add_control_lowering(LoweringTable& table);
void add_collective_lowering(LoweringTable& table);
void add_texture_lowering(LoweringTable& table);
void add_matrix_lowering(LoweringTable& table);

/// True for opcodes that all lanes of a fragment must execute together, and which are therefore
/// jumped around where their guard is false.
bool is_executed_whole(std::string_view opcode);
/// True for opcodes of PTX that this device does not execute.
bool is_known_but_unsupported(std::string_view opcode);

}  // namespace fargpu::softgpu::program
