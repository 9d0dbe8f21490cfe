#include <algorithm>
#include <array>
#include <iterator>

#include "exec/block.h"
#include "exec/ops/collective.h"
#include "exec/ops/control.h"
#include "exec/ops/memory.h"
#include "program/lowering.h"

namespace fargpu::softgpu::program {
namespace {

using ptx::OperandKind;
using ptx::Type;

// ---- jumps ---------------------------------------------------------------------------------------------------------

void lower_bra(Lowering& l) {
  l.take("uni");
  l.expect_operands(1);
  if (l.operand(0).kind != OperandKind::label) l.fail("expected a label");
  IrInstruction& jump = l.emit(ops::branch(), {}, {});
  jump.flow = Flow::jump;
  jump.target = l.label(l.operand(0).index);
}

const ptx::TargetList* find_targets(Lowering& l, std::string_view name) {
  for (const ptx::TargetList& list : l.function().target_lists)
    if (list.name == name) return &list;
  return nullptr;
}

void lower_brx(Lowering& l) {
  if (!l.take("idx")) l.fail("expected .idx");
  l.take("uni");
  l.expect_operands(2);
  const ptx::TargetList* targets = find_targets(l, l.operand(1).name);
  if (targets == nullptr || targets->labels.empty()) l.fail("unknown list of branch targets");
  IrInstruction& jump = l.emit(ops::branch_indexed(), {}, {l.source(0, Type::u32)});
  jump.flow = Flow::jump_table;
  for (uint32_t label : targets->labels) jump.targets.push_back(l.label(label));
}

void lower_exit(Lowering& l) { l.emit(ops::exit(), {}, {}).flow = Flow::exit; }

void lower_ret(Lowering& l) {
  l.take("uni");
  if (l.routine().is_kernel) return lower_exit(l);
  // All returns of a function lead to one place, where lanes that parted can meet.
  IrInstruction& jump = l.emit(ops::branch(), {}, {});
  jump.flow = Flow::jump;
  jump.target = l.return_label();
}

void lower_trap(Lowering& l) { l.emit(ops::trap(), {}, {}).flow = Flow::stop; }
void lower_brkpt(Lowering& l) { l.emit(ops::breakpoint(), {}, {}); }

void lower_nanosleep(Lowering& l) {
  l.take("u32");
  l.expect_operands(1);
  l.emit(ops::nanosleep(), {}, {});
}

/// griddepcontrol: dependent launches wait for the whole of the grid before them anyway;
/// setmaxnreg: registers are not shared out here.
void lower_no_operation(Lowering& l) {
  while (!l.next_modifier().empty()) l.take(l.next_modifier());
}

// ---- calls ---------------------------------------------------------------------------------------------------------

/// Where a parameter of a call lies in the caller's frame. Registers and literals are stored to a
/// place made for them.
ParameterLayout place_argument(Lowering& l, const ptx::Operand& argument, uint32_t bytes) {
  if (argument.kind == OperandKind::variable) {
    const ptx::Variable& variable = l.function().variables[argument.index];
    return {l.variable_offset(argument.index), static_cast<uint32_t>(variable.bytes())};
  }
  Type type = bytes == 1   ? Type::b8
              : bytes == 2 ? Type::b16
              : bytes == 4 ? Type::b32
              : bytes == 8 ? Type::b64
                           : Type::b128;
  if (ptx::size_of(type) != bytes) l.fail("parameter of this size cannot be a register");
  uint32_t offset = l.reserve_local(bytes, bytes);
  IrInstruction& store = l.emit(ops::store({.element_bytes = bytes, .register_bytes = bytes}), {},
                                {l.source(argument, type), l.constant(0, 8)});
  store.flags = access_flags(MemorySpace::frame, AddressKind::fixed);
  store.immediate = offset;
  return {offset, bytes};
}

struct SystemFunctionName {
  std::string_view name;
  ops::SystemFunction function;
};

constexpr auto system_functions = std::to_array<SystemFunctionName>({
    {"vprintf", ops::SystemFunction::print},
    {"__assertfail", ops::SystemFunction::assert_fail},
    {"malloc", ops::SystemFunction::allocate},
    {"free", ops::SystemFunction::release},
    {"cudaGraphSetConditional", ops::SystemFunction::set_condition},
});

void emit_direct_call(Lowering& l, std::string_view name, std::shared_ptr<ops::CallDetails> details, bool is_noreturn) {
  Handler handler = nullptr;
  auto defined = l.symbols().functions.find(name);
  if (defined != l.symbols().functions.end()) {
    l.routine().callees.push_back(defined->second);
    details->callee = l.program().routines[defined->second].get();
    handler = ops::call();
  } else {
    for (const SystemFunctionName& candidate : system_functions)
      if (candidate.name == name) handler = ops::call_system(candidate.function);
    // The device's own functions that it lacks matter to those kernels only that use them.
    bool is_of_system = name.starts_with("__cuda") || name.starts_with("cuda");
    if (handler == nullptr && is_of_system)
      throw Unsupported("call of " + std::string(name) + ", which this device does not have");
    if (handler == nullptr) throw LinkError("function " + std::string(name) + " is not defined");
  }
  IrInstruction& call = l.emit(handler, {}, {});
  call.details = std::move(details);
  if (is_noreturn) call.flow = Flow::stop;
}

/// A register that receives a returned value, and from where.
struct ReturnedRegister {
  const ptx::Operand* operand;
  ParameterLayout place;
};

void lower_call(Lowering& l) {
  l.take("uni");
  l.expect_operands(4);
  const ptx::Operand& results = l.operand(0);
  const ptx::Operand& target = l.operand(1);
  const ptx::Operand& arguments = l.operand(2);
  const ptx::Operand& prototype_name = l.operand(3);

  const ptx::Signature* signature = nullptr;
  if (target.kind == OperandKind::symbol) {
    for (const ptx::Function& function : l.module().functions)
      if (function.name == target.name) signature = &function.signature;
  } else {
    for (const ptx::Prototype& prototype : l.function().prototypes)
      if (prototype.name == prototype_name.name) signature = &prototype.signature;
    // A list of possible targets, which all have the same signature.
    if (const ptx::TargetList* list = find_targets(l, prototype_name.name))
      for (const ptx::Function& function : l.module().functions)
        if (!list->functions.empty() && function.name == list->functions[0]) signature = &function.signature;
  }
  if (signature == nullptr) l.fail("call of a function that is not declared");
  if (signature->parameters.size() != arguments.elements.size() || signature->returns.size() != results.elements.size())
    l.fail("number of parameters of a call");

  auto details = std::make_shared<ops::CallDetails>();
  for (size_t i = 0; i < arguments.elements.size(); ++i) {
    auto bytes = static_cast<uint32_t>(signature->parameters[i].bytes());
    details->arguments.push_back(place_argument(l, arguments.elements[i], bytes));
    if (details->arguments.back().bytes != bytes) l.fail("size of a parameter of a call");
  }
  std::vector<ReturnedRegister> registers;
  for (size_t i = 0; i < results.elements.size(); ++i) {
    const ptx::Operand& result = results.elements[i];
    auto bytes = static_cast<uint32_t>(signature->returns[i].bytes());
    if (result.kind == OperandKind::variable) {
      details->returns.push_back(place_argument(l, result, bytes));
      if (details->returns.back().bytes != bytes) l.fail("size of a returned value");
    } else {
      details->returns.push_back({l.reserve_local(bytes, bytes), bytes});
      if (result.kind != OperandKind::sink) registers.push_back({&result, details->returns.back()});
    }
  }

  if (target.kind == OperandKind::symbol) {
    emit_direct_call(l, target.name, std::move(details), signature->is_noreturn);
  } else {
    l.routine().has_indirect_calls = true;
    IrInstruction& call = l.emit(ops::call_indirect(), {}, {l.source(target, Type::u64)});
    call.details = std::move(details);
    l.emit(ops::meet(), {}, {});
  }
  for (const ReturnedRegister& returned : registers) {
    uint32_t bytes = returned.place.bytes;
    Type type = bytes == 2 ? Type::b16 : bytes == 4 ? Type::b32 : bytes == 8 ? Type::b64 : Type::b8;
    IrInstruction& load = l.emit(ops::load({.element_bytes = bytes, .register_bytes = bytes}),
                                 {l.destination(*returned.operand, type)}, {l.constant(0, 8)});
    load.flags = access_flags(MemorySpace::frame, AddressKind::fixed);
    load.immediate = returned.place.offset;
  }
}

// ---- barriers ------------------------------------------------------------------------------------------------------

void emit_barrier(Lowering& l, BarrierKind kind, Value result, size_t first_operand, size_t operand_count,
                  Value predicate) {
  Value id = operand_count >= 1 ? l.source(first_operand, Type::u32) : l.constant(0, 4);
  Value threads = operand_count >= 2 ? l.source(first_operand + 1, Type::u32) : l.constant(0, 4);
  l.emit(ops::barrier(), {result}, {id, threads, predicate}).immediate = static_cast<int64_t>(kind);
}

void lower_cluster_barrier(Lowering& l) {
  bool is_arrive = l.take("arrive");
  if (!is_arrive && !l.take("wait")) l.fail("expected .arrive or .wait");
  l.ignore({"release", "relaxed", "acquire", "aligned"});
  l.expect_operands(0);
  l.emit(is_arrive ? ops::cluster_arrive() : ops::cluster_wait(), {}, {}).immediate =
      static_cast<int64_t>(BarrierKind::sync);
}

void lower_barrier_reduction(Lowering& l) {
  int op = l.take_one_of({"popc", "and", "or"});
  if (op < 0) l.fail("expected a reduction");
  constexpr BarrierKind kinds[] = {BarrierKind::reduce_popc, BarrierKind::reduce_and, BarrierKind::reduce_or};
  Type type = l.take_type();
  l.expect_operands(3, 4);
  if ((op == 0) != (type == Type::u32)) l.fail("type of a reduction over a barrier");
  Value result = op == 0 ? l.destination(0, Type::u32) : l.destination_predicate(l.operand(0));
  Value predicate = l.source_predicate(l.operand(l.operand_count() - 1));
  emit_barrier(l, kinds[op], result, 1, l.operand_count() - 2, predicate);
}

void lower_warp_barrier(Lowering& l) {
  if (!l.take("sync")) l.fail("expected .sync");
  l.expect_operands(1);
  l.emit(ops::warp_barrier(), {}, {l.source(0, Type::u32)});
}

void lower_barrier(Lowering& l) {
  if (l.take("cluster")) return lower_cluster_barrier(l);
  l.take("cta");
  if (l.take("warp")) return lower_warp_barrier(l);
  Value no_predicate = l.ir().constant_predicate(false);
  if (l.take("red")) {
    l.take("aligned");
    return lower_barrier_reduction(l);
  }
  bool is_arrive = l.take("arrive");
  if (!is_arrive && !l.take("sync")) l.fail("unknown kind of barrier");
  l.take("aligned");
  l.expect_operands(is_arrive ? 2 : 0, 2);
  emit_barrier(l, is_arrive ? BarrierKind::arrive : BarrierKind::sync, l.sink(), 0, l.operand_count(), no_predicate);
}

}  // namespace

bool is_executed_whole(std::string_view opcode) {
  static constexpr std::string_view names[] = {"bar",      "barrier", "brx",      "call",      "elect",
                                               "ldmatrix", "match",   "mma",      "movmatrix", "nanosleep",
                                               "redux",    "shfl",    "stmatrix", "vote",      "wmma"};
  return std::find(std::begin(names), std::end(names), opcode) != std::end(names);
}

void add_control_lowering(LoweringTable& table) {
  table["bra"] = &lower_bra;
  table["brx"] = &lower_brx;
  table["call"] = &lower_call;
  table["ret"] = &lower_ret;
  table["exit"] = &lower_exit;
  table["trap"] = &lower_trap;
  table["brkpt"] = &lower_brkpt;
  table["nanosleep"] = &lower_nanosleep;
  table["griddepcontrol"] = &lower_no_operation;
  table["setmaxnreg"] = &lower_no_operation;
  table["bar"] = &lower_barrier;
  table["barrier"] = &lower_barrier;
}

}  // namespace fargpu::softgpu::program
