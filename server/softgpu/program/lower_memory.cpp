#include <algorithm>

#include "exec/ops/async.h"
#include "exec/ops/atomic.h"
#include "exec/ops/compare.h"
#include "exec/ops/convert.h"
#include "exec/ops/integer.h"
#include "exec/ops/memory.h"
#include "program/lower_address.h"
#include "program/lowering.h"

namespace fargpu::softgpu::program {
namespace {

using ptx::OperandKind;
using ptx::Space;
using ptx::Type;

/// Cache operators, eviction priorities and prefetch sizes: hints that change no result. True if
/// a cache policy follows as an operand.
bool ignore_cache_hints(Lowering& l) {
  l.ignore({"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"});
  bool has_policy = l.take("L2::cache_hint");
  l.ignore({"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
            "L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B"});
  return has_policy;
}

/// Memory semantics: true for accesses that other threads may wait for.
bool take_strength(Lowering& l) {
  bool is_strong = l.take_one_of({"volatile", "relaxed", "acquire", "release"}) >= 0;
  l.ignore({"weak", "cta", "cluster", "gpu", "sys", "mmio"});
  return is_strong;
}

uint32_t take_vector_width(Lowering& l) {
  switch (l.take_one_of({"v2", "v4", "v8"})) {
    case 0: return 2;
    case 1: return 4;
    case 2: return 8;
    default: return 1;
  }
}

/// Registers of a load or store; they may be wider than the elements, but are all of one size.
struct ElementRegisters {
  uint32_t bytes = 0;
  std::vector<Value> values;
};

ElementRegisters element_registers(Lowering& l, const ptx::Operand& operand, Type type, uint32_t count,
                                   bool is_source) {
  std::vector<const ptx::Operand*> elements;
  if (operand.kind == OperandKind::vector)
    for (const ptx::Operand& element : operand.elements) elements.push_back(&element);
  else elements.push_back(&operand);
  if (elements.size() != count) l.fail("number of registers does not fit the vector");
  ElementRegisters result;
  result.bytes = ptx::size_of(type);
  for (const ptx::Operand* element : elements) result.bytes = std::max(result.bytes, l.register_bytes(*element));
  Type register_type = result.bytes == 1   ? Type::b8
                       : result.bytes == 2 ? Type::b16
                       : result.bytes == 4 ? Type::b32
                       : result.bytes == 8 ? Type::b64
                                           : Type::b128;
  if (result.bytes == ptx::size_of(type)) register_type = type;
  for (const ptx::Operand* element : elements)
    result.values.push_back(is_source ? l.source(*element, register_type) : l.destination(*element, register_type));
  return result;
}

void lower_ld(Lowering& l) {
  bool is_strong = take_strength(l);
  bool has_policy = ignore_cache_hints(l);
  Space space = take_space(l);
  uint32_t count = take_vector_width(l);
  Type type = l.take_type();
  l.expect_operands(has_policy ? 3 : 2);
  Address address = l.address(l.operand(1), space);
  ElementRegisters results = element_registers(l, l.operand(0), type, count, false);
  IrInstruction& load = l.emit(ops::load({.element_bytes = ptx::size_of(type),
                                          .register_bytes = results.bytes,
                                          .is_signed = ptx::is_signed_integer(type),
                                          .count = count}),
                               results.values, {address.base});
  load.immediate = address.offset;
  load.flags = access_flags(address.space, address.kind) | (is_strong ? ops::strong_access : 0);
}

void lower_st(Lowering& l) {
  if (l.take("async")) l.unsupported();
  bool is_strong = take_strength(l);
  bool has_policy = ignore_cache_hints(l);
  Space space = take_space(l);
  uint32_t count = take_vector_width(l);
  Type type = l.take_type();
  l.expect_operands(has_policy ? 3 : 2);
  Address address = l.address(l.operand(0), space);
  ElementRegisters sources = element_registers(l, l.operand(1), type, count, true);
  std::vector<Value> uses = sources.values;
  uses.push_back(address.base);
  IrInstruction& store = l.emit(
      ops::store({.element_bytes = ptx::size_of(type), .register_bytes = sources.bytes, .count = count}), {}, uses);
  store.immediate = address.offset;
  store.flags = access_flags(address.space, address.kind) | (is_strong ? ops::strong_access : 0);
}

// ---- atomics -------------------------------------------------------------------------------------------------------

ops::AtomicOp take_atomic_op(Lowering& l) {
  int found = l.take_one_of({"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"});
  if (found < 0) l.fail("expected an operation");
  return static_cast<ops::AtomicOp>(found);
}

/// atom and red; the latter has no result.
void lower_atomic(Lowering& l, bool has_result) {
  if (l.take("async")) l.unsupported();
  l.ignore({"relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "noftz"});
  bool has_policy = ignore_cache_hints(l);
  Space space = take_space(l);
  uint32_t count = take_vector_width(l);
  ops::AtomicOp op = take_atomic_op(l);
  Type type = l.take_type();
  bool is_compare = op == ops::AtomicOp::compare_exchange;
  size_t first = has_result ? 1 : 0;
  l.expect_operands(first + 2 + is_compare + has_policy);

  Address address = l.address(l.operand(first), space);
  if (address.space != MemorySpace::generic && address.space != MemorySpace::global &&
      address.space != MemorySpace::shared)
    l.unsupported();
  ElementRegisters values = element_registers(l, l.operand(first + 1), type, count, true);
  std::vector<Value> results(count, l.sink());
  if (has_result) results = element_registers(l, l.operand(0), type, count, false).values;
  bool result_is_used = has_result && l.operand(0).kind != OperandKind::sink;
  std::vector<Value> uses = {address.base};
  uses.insert(uses.end(), values.values.begin(), values.values.end());
  if (is_compare) uses.push_back(l.source(first + 2, type));
  if (count > 4) l.unsupported();
  IrInstruction& atomic = l.emit(ops::atomic({.op = op, .type = type, .count = count}), results, uses);
  atomic.immediate = address.offset;
  atomic.flags = access_flags(address.space, address.kind) | (result_is_used ? ops::strong_access : 0);
}

void lower_atom(Lowering& l) { lower_atomic(l, true); }
void lower_red(Lowering& l) { lower_atomic(l, false); }

// ---- hints and fences ----------------------------------------------------------------------------------------------

void ignore_all_modifiers(Lowering& l) {
  while (!l.next_modifier().empty()) l.take(l.next_modifier());
}

void lower_hint(Lowering& l) { ignore_all_modifiers(l); }

void lower_fence(Lowering& l) {
  ignore_all_modifiers(l);
  l.emit(ops::fence(), {}, {});
}

// ---- asynchronous copies -------------------------------------------------------------------------------------------

void lower_bulk_copy(Lowering& l) {
  if (l.take_one_of({"commit_group", "wait_group"}) >= 0) {
    l.take("read");
    return;  // copies are complete when they were issued
  }
  if (l.take("prefetch")) return ignore_all_modifiers(l);
  if (l.take("tensor")) l.unsupported("tensor maps");
  // The spaces of destination and source, in this order.
  auto take_side = [&] {
    switch (l.take_one_of({"shared::cluster", "shared::cta", "global"})) {
      case 0:
      case 1: return Space::shared;
      case 2: return Space::global;
      default: l.fail("expected a state space");
    }
  };
  std::string_view first = l.next_modifier();
  Space to = first == "global"        ? (l.take("global"), Space::global)
             : first == "shared::cta" ? (l.take("shared::cta"), Space::shared)
                                      : take_side();
  Space from = take_side();
  bool completes_barrier = l.take("mbarrier::complete_tx::bytes");
  l.take("bulk_group");
  bool has_policy = l.take("L2::cache_hint");
  if (l.take("multicast::cluster") || l.take("cp_mask")) l.unsupported();
  l.expect_operands(3 + completes_barrier + has_policy);
  Value barrier = completes_barrier ? generic_address(l, l.operand(3), Space::shared) : l.constant(0, 8);
  l.emit(
       ops::copy_bulk(), {},
       {generic_address(l, l.operand(0), to), generic_address(l, l.operand(1), from), l.source(2, Type::u32), barrier})
      .flags = completes_barrier;
}

void lower_cp(Lowering& l) {
  if (l.take("reduce")) l.unsupported();
  if (!l.take("async")) l.fail("expected .async");
  if (l.take("bulk")) return lower_bulk_copy(l);
  if (l.take_one_of({"commit_group", "wait_group", "wait_all"}) >= 0) return;
  if (l.take("mbarrier")) {
    if (!l.take("arrive")) l.unsupported();
    bool no_increment = l.take("noinc");
    Space space = take_space(l);
    l.take("b64");
    l.expect_operands(1);
    // Otherwise the pending count is raised first, and lowered again as the copies are complete.
    if (no_increment)
      l.emit(ops::barrier_object(ops::BarrierObjectOp::arrive), {l.sink()},
             {generic_address(l, l.operand(0), space), l.constant(1, 4)});
    return;
  }
  ignore_cache_hints(l);
  if (l.take_one_of({"shared", "shared::cta"}) < 0 || !l.take("global")) l.fail("expected .shared.global");
  l.expect_operands(3, 5);
  uint32_t bytes = l.immediate(l.operand(2));
  if (bytes != 4 && bytes != 8 && bytes != 16) l.fail("size of an asynchronous copy");
  Value read = l.constant(bytes, 4);
  if (l.operand_count() >= 4) {
    bool is_predicate = l.register_type(l.operand(3)) == Type::pred;
    if (is_predicate) {  // ignore-src: nothing is read where it is true
      read = l.new_register(4);
      l.emit(ops::select(4), {read}, {l.constant(0, 4), l.constant(bytes, 4), l.source_predicate(l.operand(3))});
    } else {
      read = l.source(3, Type::u32);
    }
  }
  l.emit(ops::copy_async(), {},
         {generic_address(l, l.operand(0), Space::shared), generic_address(l, l.operand(1), Space::global), read})
      .immediate = bytes;
}

// ---- mbarrier ------------------------------------------------------------------------------------------------------

void lower_mbarrier_arrive(Lowering& l, bool is_drop) {
  bool expects_bytes = l.take("expect_tx");
  l.take("noComplete");
  l.ignore({"release", "relaxed", "cta", "cluster"});
  Space space = take_space(l);
  l.take("b64");
  // Without a result the first operand is the address.
  size_t at = l.operand(0).kind == OperandKind::address ? 0 : 1;
  l.expect_operands(at + 1, at + 2);
  Value state = at == 0 ? l.sink() : l.destination(0, Type::b64);
  Value count = l.operand_count() > at + 1 ? l.source(at + 1, Type::u32) : l.constant(1, 4);
  auto op = expects_bytes ? ops::BarrierObjectOp::arrive_expect
            : is_drop     ? ops::BarrierObjectOp::arrive_drop
                          : ops::BarrierObjectOp::arrive;
  if (expects_bytes && is_drop) l.unsupported();
  l.emit(ops::barrier_object(op), {state}, {generic_address(l, l.operand(at), space), count});
}

void lower_mbarrier_test(Lowering& l) {
  bool by_parity = l.take("parity");
  l.ignore({"acquire", "relaxed", "cta", "cluster"});
  Space space = take_space(l);
  l.take("b64");
  l.expect_operands(3, 4);  // a time limit may follow
  Value awaited = l.source(2, by_parity ? Type::u32 : Type::b64);
  auto op = by_parity ? ops::BarrierObjectOp::test_parity : ops::BarrierObjectOp::test;
  l.emit(ops::barrier_object(op), {l.destination_predicate(l.operand(0))},
         {generic_address(l, l.operand(1), space), awaited});
}

void lower_mbarrier(Lowering& l) {
  switch (l.take_one_of({"init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "pending_count",
                         "expect_tx", "complete_tx"})) {
    case 2: return lower_mbarrier_arrive(l, false);
    case 3: return lower_mbarrier_arrive(l, true);
    case 4:
    case 5: return lower_mbarrier_test(l);
    case 6:
      l.take("b64");
      l.expect_operands(2);
      l.emit(ops::barrier_object(ops::BarrierObjectOp::pending_count), {l.destination(0, Type::u32)},
             {l.source(1, Type::b64)});
      return;
    case 0: {
      Space space = take_space(l);
      l.take("b64");
      l.expect_operands(2);
      l.emit(ops::barrier_object(ops::BarrierObjectOp::init), {},
             {generic_address(l, l.operand(0), space), l.source(1, Type::u32)});
      return;
    }
    case 1: {
      Space space = take_space(l);
      l.take("b64");
      l.expect_operands(1);
      l.emit(ops::barrier_object(ops::BarrierObjectOp::invalidate), {}, {generic_address(l, l.operand(0), space)});
      return;
    }
    case 7:
    case 8: {
      bool is_expect = l.instruction().modifiers[0] == "expect_tx";
      l.ignore({"relaxed", "cta", "cluster"});
      Space space = take_space(l);
      l.take("b64");
      l.expect_operands(2);
      auto op = is_expect ? ops::BarrierObjectOp::expect : ops::BarrierObjectOp::complete;
      l.emit(ops::barrier_object(op), {}, {generic_address(l, l.operand(0), space), l.source(1, Type::u32)});
      return;
    }
    default: l.unsupported();
  }
}

}  // namespace

Space take_space(Lowering& l) {
  switch (l.take_one_of({"global", "const", "shared", "shared::cta", "shared::cluster", "local", "param",
                         "param::entry", "param::func"})) {
    case 0: return Space::global;
    case 1: return Space::constant;
    case 2:
    case 3:
    case 4: return Space::shared;
    case 5: return Space::local;
    case 6:
    case 7:
    case 8: return Space::param;
    default: return Space::generic;
  }
}

Value generic_address(Lowering& l, const ptx::Operand& operand, Space space) {
  Address address = l.address(operand, space);
  Value value = address.base;
  if (address.kind == AddressKind::fixed) l.unsupported("address of a parameter");
  if (address.kind == AddressKind::register_32) {
    value = l.new_register(8);
    l.emit(ops::resize(8, 4, false), {value}, {address.base});
  }
  uint64_t offset = static_cast<uint64_t>(address.offset);
  if (address.space == MemorySpace::shared) offset += window_base(Window::shared);
  if (address.space == MemorySpace::local) offset += window_base(Window::local);
  if (offset == 0) return value;
  Value sum = l.new_register(8);
  l.emit(ops::add(Type::u64, false), {sum}, {value, l.constant(offset, 8)});
  return sum;
}

void add_memory_lowering(LoweringTable& table) {
  table["ld"] = &lower_ld;
  table["ldu"] = &lower_ld;
  table["st"] = &lower_st;
  table["atom"] = &lower_atom;
  table["red"] = &lower_red;
  table["prefetch"] = &lower_hint;
  table["prefetchu"] = &lower_hint;
  table["discard"] = &lower_hint;
  table["applypriority"] = &lower_hint;
  table["fence"] = &lower_fence;
  table["membar"] = &lower_fence;
  table["cp"] = &lower_cp;
  table["mbarrier"] = &lower_mbarrier;
}

}  // namespace fargpu::softgpu::program
