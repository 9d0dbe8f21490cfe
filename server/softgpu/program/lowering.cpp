#include "program/lowering.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <iterator>

#include "exec/float_format.h"
#include "exec/ops/compare.h"
#include "exec/ops/control.h"
#include "exec/ops/convert.h"
#include "exec/ops/memory.h"
#include "exec/warp.h"
#include "program/assemble.h"
#include "ptx/error.h"

namespace fargpu::softgpu::program {
namespace {

using ptx::OperandKind;
using ptx::Space;
using ptx::Type;

uint32_t align_up(uint32_t value, uint32_t align) { return (value + align - 1) / align * align; }

// What one variable within a function may take: parameters as PTX allows them, local and shared
// memory as much as a thread or block could have.
constexpr uint64_t parameter_bytes_max = 32764;
constexpr uint32_t local_bytes_max = 512u << 10;
constexpr uint64_t shared_bytes_max = 8u << 20;

uint32_t variable_bytes(const ptx::Variable& variable) {
  uint64_t bytes_max = variable.space == Space::param    ? parameter_bytes_max
                       : variable.space == Space::shared ? shared_bytes_max
                                                         : local_bytes_max;
  if (variable.bytes() > bytes_max)
    throw ptx::SyntaxError(variable.line, "'" + std::string(variable.name) + "' is too large");
  return static_cast<uint32_t>(variable.bytes());
}

struct FixedRegister {
  std::string_view name;
  Bank bank;
  uint32_t offset;
  uint32_t bytes;
};

// Special registers that have one value per lane as long as a block runs (PTX ISA 10).
constexpr auto fixed_registers = std::to_array<FixedRegister>({
    {"%tid.x", Bank::warp, offsetof(WarpRegisters, tid_x), 4},
    {"%tid.y", Bank::warp, offsetof(WarpRegisters, tid_y), 4},
    {"%tid.z", Bank::warp, offsetof(WarpRegisters, tid_z), 4},
    {"%laneid", Bank::warp, offsetof(WarpRegisters, laneid), 4},
    {"%warpid", Bank::warp, offsetof(WarpRegisters, warpid), 4},
    {"%lanemask_eq", Bank::warp, offsetof(WarpRegisters, lanemask_eq), 4},
    {"%lanemask_le", Bank::warp, offsetof(WarpRegisters, lanemask_le), 4},
    {"%lanemask_lt", Bank::warp, offsetof(WarpRegisters, lanemask_lt), 4},
    {"%lanemask_ge", Bank::warp, offsetof(WarpRegisters, lanemask_ge), 4},
    {"%lanemask_gt", Bank::warp, offsetof(WarpRegisters, lanemask_gt), 4},
    {"%ntid.x", Bank::block, offsetof(BlockRegisters, ntid_x), 4},
    {"%ntid.y", Bank::block, offsetof(BlockRegisters, ntid_y), 4},
    {"%ntid.z", Bank::block, offsetof(BlockRegisters, ntid_z), 4},
    {"%nctaid.x", Bank::block, offsetof(BlockRegisters, nctaid_x), 4},
    {"%nctaid.y", Bank::block, offsetof(BlockRegisters, nctaid_y), 4},
    {"%nctaid.z", Bank::block, offsetof(BlockRegisters, nctaid_z), 4},
    {"%ctaid.x", Bank::block, offsetof(BlockRegisters, ctaid_x), 4},
    {"%ctaid.y", Bank::block, offsetof(BlockRegisters, ctaid_y), 4},
    {"%ctaid.z", Bank::block, offsetof(BlockRegisters, ctaid_z), 4},
    {"%nwarpid", Bank::block, offsetof(BlockRegisters, nwarpid), 4},
    {"%smid", Bank::block, offsetof(BlockRegisters, smid), 4},
    {"%nsmid", Bank::block, offsetof(BlockRegisters, nsmid), 4},
    {"%gridid", Bank::block, offsetof(BlockRegisters, gridid), 8},
    {"%clusterid.x", Bank::block, offsetof(BlockRegisters, clusterid_x), 4},
    {"%clusterid.y", Bank::block, offsetof(BlockRegisters, clusterid_y), 4},
    {"%clusterid.z", Bank::block, offsetof(BlockRegisters, clusterid_z), 4},
    {"%nclusterid.x", Bank::block, offsetof(BlockRegisters, nclusterid_x), 4},
    {"%nclusterid.y", Bank::block, offsetof(BlockRegisters, nclusterid_y), 4},
    {"%nclusterid.z", Bank::block, offsetof(BlockRegisters, nclusterid_z), 4},
    {"%cluster_ctaid.x", Bank::block, offsetof(BlockRegisters, cluster_ctaid_x), 4},
    {"%cluster_ctaid.y", Bank::block, offsetof(BlockRegisters, cluster_ctaid_y), 4},
    {"%cluster_ctaid.z", Bank::block, offsetof(BlockRegisters, cluster_ctaid_z), 4},
    {"%cluster_nctaid.x", Bank::block, offsetof(BlockRegisters, cluster_nctaid_x), 4},
    {"%cluster_nctaid.y", Bank::block, offsetof(BlockRegisters, cluster_nctaid_y), 4},
    {"%cluster_nctaid.z", Bank::block, offsetof(BlockRegisters, cluster_nctaid_z), 4},
    {"%cluster_ctarank", Bank::block, offsetof(BlockRegisters, cluster_ctarank), 4},
    {"%cluster_nctarank", Bank::block, offsetof(BlockRegisters, cluster_nctarank), 4},
    {"%total_smem_size", Bank::block, offsetof(BlockRegisters, total_smem_size), 4},
    {"%aggr_smem_size", Bank::block, offsetof(BlockRegisters, aggr_smem_size), 4},
    {"%dynamic_smem_size", Bank::block, offsetof(BlockRegisters, dynamic_smem_size), 4},
    {"%envreg1", Bank::block, offsetof(BlockRegisters, envreg1), 4},
    {"%envreg2", Bank::block, offsetof(BlockRegisters, envreg2), 4},
});

struct CounterRegister {
  std::string_view name;
  ops::Counter counter;
  uint32_t bytes;
};

constexpr auto counter_registers = std::to_array<CounterRegister>({
    {"%clock", ops::Counter::clock, 4},
    {"%clock_hi", ops::Counter::clock_high, 4},
    {"%clock64", ops::Counter::clock, 8},
    {"%globaltimer", ops::Counter::global_timer, 8},
    {"%globaltimer_lo", ops::Counter::global_timer, 4},
    {"%globaltimer_hi", ops::Counter::global_timer_high, 4},
});

// The part of shared memory that belongs to the system: cooperative groups keep their scratch
// memory at the first offset register's place.
struct ConstantRegister {
  std::string_view name;
  uint32_t value;
};

constexpr auto constant_registers = std::to_array<ConstantRegister>({
    {"%reserved_smem_offset_begin", 0},
    {"%reserved_smem_offset_end", reserved_shared_bytes},
    {"%reserved_smem_offset_cap", reserved_shared_bytes},
    {"%reserved_smem_offset_0", 0},
    {"%reserved_smem_offset_1", reserved_shared_bytes / 2},
});

/// The bits of a literal as a value of the type.
uint64_t literal_bits(const ptx::Operand& operand, Type type) {
  if (operand.kind == OperandKind::integer) return operand.bits;
  double value = operand.kind == OperandKind::float64 ? std::bit_cast<double>(operand.bits)
                                                      : std::bit_cast<float>(static_cast<uint32_t>(operand.bits));
  switch (type) {
    case Type::f64: return std::bit_cast<uint64_t>(value);
    case Type::f16: return round_to<Half>(value).bits;
    case Type::bf16: return round_to<Bfloat>(value).bits;
    case Type::f32:
    case Type::tf32:
      return operand.kind == OperandKind::float32 ? operand.bits : std::bit_cast<uint32_t>(static_cast<float>(value));
    default: return operand.bits;  // bits as they stand
  }
}

}  // namespace

Lowering::Lowering(Program& program, const Symbols& symbols, const ptx::Module& module, const ptx::Function& source,
                   Routine& routine)
    : program_(program), symbols_(symbols), module_(module), source_(source), routine_(routine) {}

void Lowering::run() {
  place_variables();
  for (const ptx::Register& reg : source_.registers) registers_.push_back(ir_.new_register(ptx::size_of(reg.type)));
  for (size_t i = 0; i < source_.labels.size(); ++i) labels_.push_back(ir_.new_label());
  return_label_ = ir_.new_label();

  std::vector<std::vector<uint32_t>> labels_at(source_.body.size() + 1);
  for (uint32_t i = 0; i < source_.labels.size(); ++i) labels_at[source_.labels[i].position].push_back(labels_[i]);

  load_register_parameters();
  for (size_t i = 0; i < source_.body.size(); ++i) {
    for (uint32_t label : labels_at[i]) ir_.place_label(label);
    lower_instruction(source_.body[i]);
  }
  for (uint32_t label : labels_at[source_.body.size()]) ir_.place_label(label);
  lower_return_place();
  assemble(ir_, routine_);
  if (!routine_.is_kernel) routine_.local_bytes = std::max<uint32_t>(routine_.local_bytes, 16);
  routine_.local_bytes = align_up(routine_.local_bytes, 16);
}

void Lowering::place_variables() {
  const ptx::Signature& signature = source_.signature;
  size_t in_parameters = 0, in_returns = 0;
  for (const auto& parameter : signature.returns) in_returns += parameter.space == Space::param;
  for (const auto& parameter : signature.parameters) in_parameters += parameter.space == Space::param;
  // The parser declares returned values before parameters.
  lay_out_parameters(signature.returns, routine_.returns);
  if (routine_.is_kernel) {
    uint32_t offset = 0;
    for (const ptx::Variable& parameter : signature.parameters) {
      offset = align_up(offset, parameter.align);
      routine_.parameters.push_back({offset, variable_bytes(parameter)});
      variables_.push_back({Storage::kernel_parameter, offset});
      offset += variable_bytes(parameter);
    }
    routine_.parameter_bytes = offset;
  } else {
    lay_out_parameters(signature.parameters, routine_.parameters);
  }
  for (size_t i = in_returns + in_parameters; i < source_.variables.size(); ++i) {
    const ptx::Variable& variable = source_.variables[i];
    switch (variable.space) {
      case Space::local:
      case Space::param:
        variables_.push_back({Storage::frame, reserve_local(variable_bytes(variable), variable.align)});
        break;
      case Space::shared:
        // It takes up space even if nothing uses it.
        routine_.shared_variables.push_back(static_cast<uint32_t>(program_.shared.size()));
        variables_.push_back({Storage::shared, static_cast<uint32_t>(program_.shared.size())});
        program_.shared.push_back(
            {std::string(variable.name), variable_bytes(variable), variable.align, variable.is_unsized});
        break;
      default: throw ptx::SyntaxError(variable.line, "variable of this space within a function");
    }
  }
}

/// Parameters of a function lie in the local memory of its frame; so do those declared as
/// registers, from where they are loaded at the start.
void Lowering::lay_out_parameters(const std::vector<ptx::Variable>& parameters, std::vector<ParameterLayout>& layouts) {
  for (const ptx::Variable& parameter : parameters) {
    uint32_t offset = reserve_local(variable_bytes(parameter), parameter.align);
    layouts.push_back({offset, variable_bytes(parameter)});
    if (parameter.space == Space::param) variables_.push_back({Storage::frame, offset});
  }
}

uint32_t Lowering::reserve_local(uint32_t bytes, uint32_t align) {
  // In words, because calls copy parameters by words.
  uint32_t offset = align_up(routine_.local_bytes, std::max(align, 4u));
  routine_.local_bytes = offset + align_up(bytes, 4);
  if (routine_.local_bytes > local_bytes_max) throw Unsupported("more than 512 KiB of local memory");
  return offset;
}

void Lowering::load_register_parameters() {
  // Registers of the signature are declared first, returned values before parameters.
  uint32_t reg = 0;
  for (const ptx::Variable& value : source_.signature.returns)
    if (value.space == Space::reg) ++reg;
  for (size_t i = 0; i < source_.signature.parameters.size(); ++i) {
    const ptx::Variable& parameter = source_.signature.parameters[i];
    if (parameter.space != Space::reg) continue;
    if (routine_.is_kernel || parameter.type == Type::pred || parameter.vector_width != 1)
      throw ptx::SyntaxError(parameter.line, "parameter of this type cannot be a register");
    uint32_t bytes = ptx::size_of(parameter.type);
    IrInstruction& load =
        emit(ops::load({.element_bytes = bytes, .register_bytes = bytes}), {registers_[reg++]}, {constant(0, 8)});
    load.flags = access_flags(MemorySpace::frame, AddressKind::fixed);
    load.immediate = routine_.parameters[i].offset;
  }
}

/// Where all returns of a function lead; a kernel's threads end there.
void Lowering::lower_return_place() {
  instruction_ = nullptr;
  guard_ = none;
  ir_.place_label(return_label_);
  if (routine_.is_kernel) {
    emit(ops::exit(), {}, {}).flow = Flow::exit;
    return;
  }
  uint32_t reg = 0;
  for (size_t i = 0; i < source_.signature.returns.size(); ++i) {
    const ptx::Variable& value = source_.signature.returns[i];
    if (value.space != Space::reg) continue;
    uint32_t bytes = ptx::size_of(value.type);
    IrInstruction& store =
        emit(ops::store({.element_bytes = bytes, .register_bytes = bytes}), {}, {registers_[reg++], constant(0, 8)});
    store.flags = access_flags(MemorySpace::frame, AddressKind::fixed);
    store.immediate = routine_.returns[i].offset;
  }
  emit(ops::return_from_call(), {}, {}).flow = Flow::give_back;
}

void Lowering::lower_instruction(const ptx::Instruction& instruction) {
  instruction_ = &instruction;
  is_taken_.assign(instruction.modifiers.size(), false);
  auto found = lowering_table().find(instruction.opcode);
  if (found == lowering_table().end()) {
    if (is_known_but_unsupported(instruction.opcode)) unsupported();
    fail("unknown instruction '" + std::string(instruction.opcode) + "'");
  }
  guard_ = instruction.guard == ptx::no_index ? none : registers_[instruction.guard].index;
  is_guard_negated_ = instruction.is_guard_negated;
  uint32_t behind = none;
  if (guard_ != none && is_executed_whole(instruction.opcode)) {
    behind = ir_.new_label();
    is_guard_negated_ = !is_guard_negated_;
    IrInstruction& jump = emit(ops::branch(), {}, {});
    jump.flow = Flow::jump;
    jump.target = behind;
    guard_ = none;
  }
  found->second(*this);
  if (behind != none) ir_.place_label(behind);
  if (!next_modifier().empty()) unsupported("modifier ." + std::string(next_modifier()));
}

// ---- the instruction at hand ---------------------------------------------------------------------------------------

std::string Lowering::text_of_instruction() const {
  std::string text(instruction_->opcode);
  for (std::string_view modifier : instruction_->modifiers) text += "." + std::string(modifier);
  return text;
}

void Lowering::fail(const std::string& reason) const {
  throw ptx::SyntaxError(instruction_ != nullptr ? instruction_->line : source_.line, reason);
}

void Lowering::unsupported(const std::string& reason) const {
  if (instruction_ == nullptr) throw Unsupported("parameters of this kind are not supported");
  std::string text = "instruction " + text_of_instruction() + " (PTX line " + std::to_string(instruction_->line) +
                     ") is not supported";
  if (!reason.empty()) text += ": " + reason;
  throw Unsupported(text);
}

const ptx::Operand& Lowering::operand(size_t index) const {
  if (index >= instruction_->operands.size()) fail("too few operands");
  return instruction_->operands[index];
}

void Lowering::expect_operands(size_t least, size_t most) {
  if (operand_count() < least) fail("too few operands of " + text_of_instruction());
  if (operand_count() > most) fail("too many operands of " + text_of_instruction());
}

bool Lowering::take(std::string_view modifier) {
  for (size_t i = 0; i < is_taken_.size(); ++i)
    if (!is_taken_[i] && instruction_->modifiers[i] == modifier) {
      is_taken_[i] = true;
      return true;
    }
  return false;
}

int Lowering::take_one_of(std::initializer_list<std::string_view> modifiers) {
  int position = 0;
  for (std::string_view modifier : modifiers) {
    if (take(modifier)) return position;
    ++position;
  }
  return -1;
}

std::optional<Type> Lowering::try_take_type() {
  for (size_t i = 0; i < is_taken_.size(); ++i) {
    if (is_taken_[i]) continue;
    if (auto type = ptx::parse_type(instruction_->modifiers[i])) {
      is_taken_[i] = true;
      return type;
    }
  }
  return std::nullopt;
}

Type Lowering::take_type() {
  auto type = try_take_type();
  if (!type) fail("no type in " + text_of_instruction());
  return *type;
}

void Lowering::ignore(std::initializer_list<std::string_view> modifiers) {
  for (std::string_view modifier : modifiers) take(modifier);
}

std::string_view Lowering::next_modifier() const {
  for (size_t i = 0; i < is_taken_.size(); ++i)
    if (!is_taken_[i]) return instruction_->modifiers[i];
  return {};
}

// ---- operands ------------------------------------------------------------------------------------------------------

Value Lowering::sink() const { return {Value::Kind::warp_register, offsetof(WarpRegisters, sink)}; }

Type Lowering::register_type(const ptx::Operand& operand) const {
  return operand.kind == OperandKind::reg ? source_.registers[operand.index].type : Type::none;
}

uint32_t Lowering::register_bytes(const ptx::Operand& operand) const { return ptx::size_of(register_type(operand)); }

uint32_t Lowering::immediate(const ptx::Operand& operand) const {
  if (operand.kind != OperandKind::integer) fail("operand must be an integer constant");
  return static_cast<uint32_t>(operand.bits);
}

std::optional<Value> Lowering::special_register(std::string_view name, uint32_t bytes) {
  auto fitted = [&](Value value, uint32_t has_bytes) {
    if (has_bytes == bytes) return value;
    Value result = new_register(bytes);
    emit(ops::resize(bytes, has_bytes, false), {result}, {value});
    return result;
  };
  for (const FixedRegister& fixed : fixed_registers)
    if (fixed.name == name) {
      auto kind = fixed.bank == Bank::warp ? Value::Kind::warp_register : Value::Kind::block_register;
      return fitted({kind, fixed.offset}, fixed.bytes);
    }
  for (const CounterRegister& counter : counter_registers)
    if (counter.name == name) {
      Value result = new_register(counter.bytes);
      emit(ops::read_counter(counter.counter, counter.bytes), {result}, {});
      return fitted(result, counter.bytes);
    }
  for (const ConstantRegister& fixed : constant_registers)
    if (fixed.name == name) return constant(fixed.value, bytes);
  // Nothing sets the other environment registers, and no profiler the counters.
  if (name.starts_with("%envreg") || name.starts_with("%pm")) return constant(0, bytes);
  return std::nullopt;
}

Value Lowering::source(const ptx::Operand& operand, Type type, bool may_cut) {
  uint32_t bytes = ptx::size_of(type);
  if (type == Type::pred) return source_predicate(operand);
  switch (operand.kind) {
    case OperandKind::reg: {
      uint32_t has_bytes = register_bytes(operand);
      if (operand.is_negated || operand.offset != 0) fail("malformed register operand");
      if (has_bytes == bytes) return register_value(operand.index);
      if (has_bytes == 0) fail("predicate where a value is needed");
      if (!may_cut || has_bytes < bytes)
        fail("register of " + std::to_string(8 * has_bytes) + " bits where ." + std::string(ptx::name_of(type)) +
             " is needed");
      Value cut = new_register(bytes);
      emit(ops::resize(bytes, has_bytes, false), {cut}, {register_value(operand.index)});
      return cut;
    }
    case OperandKind::integer:
    case OperandKind::float32:
    case OperandKind::float64:
      if (bytes == 16)
        return ir_.constant_128(operand.bits,
                                static_cast<int64_t>(operand.bits) < 0 && !operand.is_unsigned ? ~uint64_t{0} : 0);
      return constant(literal_bits(operand, type), bytes);
    case OperandKind::special: {
      if (operand.name == "%is_explicit_cluster") unsupported();
      auto value = special_register(operand.name, bytes);
      if (!value) fail("unknown special register '" + std::string(operand.name) + "'");
      return *value;
    }
    case OperandKind::variable:
    case OperandKind::symbol: return address_value(operand, bytes);
    default: fail("operand of a kind that does not fit");
  }
}

Value Lowering::source_predicate(const ptx::Operand& operand) {
  if (operand.kind == OperandKind::integer) return ir_.constant_predicate(operand.bits != 0);
  if (operand.kind == OperandKind::special && operand.name == "%is_explicit_cluster") {
    Value flag = {Value::Kind::block_register, offsetof(BlockRegisters, is_explicit_cluster)};
    Value result = new_predicate();
    emit(ops::compare(ops::Comparison::ne, Type::u32, false), {result}, {flag, constant(0, 4)});
    return result;
  }
  if (operand.kind != OperandKind::reg || register_type(operand) != Type::pred) fail("operand must be a predicate");
  Value value = register_value(operand.index);
  return operand.is_negated ? negated(value) : value;
}

Value Lowering::negated(Value predicate) {
  Value result = new_predicate();
  emit(ops::predicate_logic(ops::PredicateOp::bit_not), {result}, {predicate});
  return result;
}

Value Lowering::destination(const ptx::Operand& operand, Type type) {
  if (type == Type::pred) return destination_predicate(operand);
  if (operand.kind == OperandKind::sink) return sink();
  if (operand.kind != OperandKind::reg || operand.is_negated || operand.offset != 0)
    fail("destination must be a register");
  if (register_bytes(operand) != ptx::size_of(type))
    fail("register of " + std::to_string(8 * register_bytes(operand)) + " bits where ." +
         std::string(ptx::name_of(type)) + " is needed");
  return register_value(operand.index);
}

Value Lowering::destination_predicate(const ptx::Operand& operand) {
  if (operand.kind == OperandKind::sink) return sink();
  if (operand.kind != OperandKind::reg || register_type(operand) != Type::pred || operand.is_negated)
    fail("destination must be a predicate");
  return register_value(operand.index);
}

Value Lowering::local_address(int64_t offset, uint32_t bytes) {
  Value result = new_register(bytes);
  emit(ops::local_address(bytes), {result}, {}).immediate = offset;
  return result;
}

Value Lowering::shared_address(uint32_t index, int64_t offset, uint32_t bytes) {
  auto& used = routine_.shared_variables;
  if (std::find(used.begin(), used.end(), index) == used.end()) used.push_back(index);
  if (bytes != 4 && bytes != 8) fail("address in a register of this size");
  if (routine_.is_kernel) return ir_.relocated(ConstantRelocation::Kind::shared, index, offset, bytes);
  // Where it lies depends on the kernel that called.
  Value result = new_register(bytes);
  IrInstruction& read = emit(ops::shared_variable_address(bytes), {result}, {});
  read.immediate = offset;
  read.flags = index;
  return result;
}

Value Lowering::address_value(const ptx::Operand& operand, uint32_t bytes) {
  if (operand.kind == OperandKind::variable) {
    const VariablePlace& place = variables_[operand.index];
    switch (place.storage) {
      case Storage::kernel_parameter: return constant(place.offset + operand.offset, bytes);
      case Storage::frame: return local_address(place.offset + operand.offset, bytes);
      case Storage::shared: return shared_address(place.offset, operand.offset, bytes);
      case Storage::global: break;
    }
  }
  if (auto found = symbols_.shared.find(operand.name); found != symbols_.shared.end())
    return shared_address(found->second, operand.offset, bytes);
  if (bytes != 8) fail("address of '" + std::string(operand.name) + "' does not fit the register");
  if (auto found = symbols_.globals.find(operand.name); found != symbols_.globals.end())
    return ir_.relocated(ConstantRelocation::Kind::global, found->second, operand.offset, 8);
  if (auto found = symbols_.functions.find(operand.name); found != symbols_.functions.end()) {
    routine_.address_taken.push_back(found->second);
    return ir_.relocated(ConstantRelocation::Kind::function, found->second, operand.offset, 8);
  }
  for (const ptx::Function& function : module_.functions)
    if (function.name == operand.name) throw LinkError("function " + std::string(operand.name) + " is not defined");
  fail("'" + std::string(operand.name) + "' is not declared");
}

Address Lowering::address(const ptx::Operand& operand, Space space) {
  if (operand.kind != OperandKind::address || operand.elements.size() != 1)
    fail("operand must be an address in brackets");
  const ptx::Operand& base = operand.elements[0];
  Address result;
  switch (space) {
    case Space::generic: result.space = MemorySpace::generic; break;
    case Space::global:
    case Space::constant: result.space = MemorySpace::global; break;
    case Space::shared: result.space = MemorySpace::shared; break;
    case Space::local: result.space = MemorySpace::local; break;
    case Space::param: result.space = routine_.is_kernel ? MemorySpace::parameter : MemorySpace::local; break;
    case Space::reg: fail("no memory in this space");
  }
  result.offset = base.offset;
  if (base.kind == OperandKind::reg) {
    uint32_t bytes = register_bytes(base);
    if (bytes != 4 && bytes != 8) fail("address in a register of this size");
    result.kind = bytes == 4 ? AddressKind::register_32 : AddressKind::register_64;
    result.base = register_value(base.index);
    bool may_be_short = result.space == MemorySpace::shared || result.space == MemorySpace::local ||
                        result.space == MemorySpace::parameter;
    if (bytes == 4 && !may_be_short) {
      // A short address of a wide space is extended with zeros.
      result.base = new_register(8);
      result.kind = AddressKind::register_64;
      emit(ops::resize(8, 4, false), {result.base}, {register_value(base.index)});
    }
    return result;
  }
  if (base.kind == OperandKind::integer) {
    result.base = constant(base.bits, 8);
    return result;
  }
  if (base.kind == OperandKind::variable) {
    const VariablePlace& place = variables_[base.index];
    if (place.storage == Storage::kernel_parameter || place.storage == Storage::frame) {
      bool is_local_space = space == Space::local || space == Space::param;
      if (!is_local_space) fail("variable '" + std::string(base.name) + "' is in another space");
      result.space = place.storage == Storage::frame ? MemorySpace::frame : MemorySpace::parameter;
      result.kind = AddressKind::fixed;
      result.base = constant(0, 8);
      result.offset += place.offset;
      return result;
    }
  }
  if (base.kind != OperandKind::variable && base.kind != OperandKind::symbol) fail("malformed address");
  ptx::Operand symbol = base;
  symbol.offset = 0;
  bool is_shared = base.kind == OperandKind::variable || symbols_.shared.contains(base.name);
  result.kind = is_shared ? AddressKind::register_32 : AddressKind::register_64;
  result.base = address_value(symbol, is_shared ? 4 : 8);
  if (is_shared && space != Space::shared) fail("address of shared memory needs .shared");
  return result;
}

Value Lowering::carry_flag() {
  if (!carry_flag_) carry_flag_ = new_predicate();
  return *carry_flag_;
}

// ---- output --------------------------------------------------------------------------------------------------------

IrInstruction& Lowering::emit(Handler run, std::initializer_list<Value> definitions,
                              std::initializer_list<Value> uses) {
  return emit(run, std::vector<Value>(definitions), std::vector<Value>(uses));
}

IrInstruction& Lowering::append(Handler run) {
  if (run == nullptr) unsupported();
  IrInstruction result;
  result.run = run;
  result.guard = guard_;
  result.is_guard_negated = is_guard_negated_;
  result.line = instruction_ != nullptr ? instruction_->line : source_.line;
  return ir_.append(std::move(result));
}

IrInstruction& Lowering::emit(Handler run, const std::vector<Value>& definitions, const std::vector<Value>& uses) {
  IrInstruction& result = append(run);
  size_t count = definitions.size() + uses.size();
  if (count > Instruction::operand_count) unsupported("too many operands");
  result.definition_count = static_cast<uint8_t>(definitions.size());
  result.operand_count = static_cast<uint8_t>(count);
  auto next = std::copy(definitions.begin(), definitions.end(), result.operands.begin());
  std::copy(uses.begin(), uses.end(), next);
  return result;
}

IrInstruction& Lowering::emit_with_details(Handler run, const std::vector<Value>& definitions,
                                           const std::vector<Value>& uses, std::shared_ptr<const void> details) {
  IrInstruction& result = append(run);
  result.more_definitions = definitions;
  result.more_uses = uses;
  result.details = std::move(details);
  return result;
}

const LoweringTable& lowering_table() {
  static const LoweringTable table = [] {
    LoweringTable result;
    add_integer_lowering(result);
    add_float_lowering(result);
    add_compare_lowering(result);
    add_move_lowering(result);
    add_memory_lowering(result);
    add_control_lowering(result);
    add_collective_lowering(result);
    add_texture_lowering(result);
    add_matrix_lowering(result);
    return result;
  }();
  return table;
}

bool is_known_but_unsupported(std::string_view opcode) {
  static constexpr std::string_view names[] = {"clusterlaunchcontrol",
                                               "createpolicy",
                                               "istypep",
                                               "multimem",
                                               "pmevent",
                                               "sured",
                                               "tcgen05",
                                               "tensormap",
                                               "vabsdiff",
                                               "vabsdiff2",
                                               "vadd",
                                               "vadd2",
                                               "vadd4",
                                               "vavrg2",
                                               "vavrg4",
                                               "vmad",
                                               "vmax",
                                               "vmax2",
                                               "vmax4",
                                               "vmin",
                                               "vmin2",
                                               "vmin4",
                                               "vset",
                                               "vset2",
                                               "vset4",
                                               "vshl",
                                               "vshr",
                                               "vsub",
                                               "vsub2",
                                               "vsub4",
                                               "wgmma"};
  return std::find(std::begin(names), std::end(names), opcode) != std::end(names);
}

}  // namespace fargpu::softgpu::program
