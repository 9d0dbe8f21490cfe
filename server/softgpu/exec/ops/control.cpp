#include "exec/ops/control.h"

#include <chrono>
#include <cstring>

#include "exec/block.h"
#include "exec/cluster.h"
#include "exec/format_print.h"
#include "exec/launch.h"
#include "exec/memory_access.h"
#include "exec/warp.h"

namespace fargpu::softgpu::ops {
namespace {

const Instruction* join_of(const Instruction& instruction) {
  auto distance = static_cast<int32_t>(instruction.flags);
  return distance == no_join ? nullptr : &instruction + distance;
}

const Instruction* run_branch(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const Instruction* next = &instruction + instruction.immediate;
  if (lanes != warp.active) next = warp.diverge(lanes, next, &instruction + 1, join_of(instruction));
  return warp.spend_fuel() ? warp.yield(next) : next;
}

const Instruction* run_meet(Warp& warp, const Instruction& instruction, LaneMask) { return warp.meet(instruction); }

const Instruction* run_exit(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  return warp.exit_lanes(lanes, &instruction + 1);
}

const Instruction* run_trap(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  return warp.raise(FaultKind::trap, instruction, first_lane(lanes), "trap instruction");
}

const Instruction* run_breakpoint(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  return warp.raise(FaultKind::trap, instruction, first_lane(lanes), "brkpt instruction without a debugger");
}

const Instruction* run_branch_indexed(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const uint32_t* index = warp.lanes<uint32_t>(instruction.operands[0]);
  auto& table = *static_cast<const BranchTable*>(instruction.details);
  // Lanes with another target than the first come back to this instruction.
  uint32_t chosen = index[first_lane(lanes)];
  LaneMask others = 0;
  for_each_lane(lanes, [&](int lane) { others |= LaneMask{index[lane] != chosen} << lane; });
  if (chosen >= table.targets.size())
    return warp.raise(FaultKind::invalid_pc, instruction, first_lane(lanes), "brx.idx beyond its list of targets");
  const Instruction* next = &instruction + table.targets[chosen];
  if (others != 0) next = warp.diverge(others, &instruction, next, join_of(instruction));
  return warp.spend_fuel() ? warp.yield(next) : next;
}

/// Copies parameters between two places in the local memory of the active lanes.
void copy_parameter(Warp& warp, uint32_t to, uint32_t from, uint32_t bytes) {
  for (uint32_t offset = 0; offset < bytes; offset += 4) {
    auto* source = reinterpret_cast<const uint32_t*>(warp.local + local_position(from + offset, 0));
    auto* target = reinterpret_cast<uint32_t*>(warp.local + local_position(to + offset, 0));
    for_each_lane(warp.active, [&](int lane) { target[lane] = source[lane]; });
  }
}

bool matches(const std::vector<ParameterLayout>& given, const std::vector<ParameterLayout>& wanted) {
  if (given.size() != wanted.size()) return false;
  for (size_t i = 0; i < given.size(); ++i)
    if (given[i].bytes != wanted[i].bytes) return false;
  return true;
}

const Instruction* enter(Warp& warp, const Instruction& instruction, const Routine& callee,
                         const CallDetails& details) {
  uint32_t caller_base = warp.frame->local_base;
  const Instruction* next = warp.call(instruction, callee);
  if (next == nullptr) return nullptr;
  for (size_t i = 0; i < details.arguments.size(); ++i)
    copy_parameter(warp, warp.frame->local_base + callee.parameters[i].offset,
                   caller_base + details.arguments[i].offset, details.arguments[i].bytes);
  return next;
}

// What a kernel reaches by name is looked at when it is launched. By a pointer it may reach any function, which may
// call others by name.
const Instruction* cannot_call(Warp& warp, const Instruction& instruction, int lane, const Routine& callee) {
  return warp.raise(FaultKind::illegal_instruction, instruction, lane,
                    "call of " + callee.name + ": " + callee.unsupported);
}

const Instruction* run_call(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  auto& details = *static_cast<const CallDetails*>(instruction.details);
  if (!details.callee->unsupported.empty()) return cannot_call(warp, instruction, first_lane(lanes), *details.callee);
  return enter(warp, instruction, *details.callee, details);
}

const Instruction* run_call_indirect(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  auto& details = *static_cast<const CallDetails*>(instruction.details);
  const uint64_t* address = warp.lanes<uint64_t>(instruction.operands[0]);
  int leader = first_lane(lanes);
  uint64_t chosen = address[leader];
  LaneMask others = 0;
  for_each_lane(lanes, [&](int lane) { others |= LaneMask{address[lane] != chosen} << lane; });

  const auto& routines = warp.launch->program->routines;
  uint64_t index = (chosen - window_base(Window::code)) / function_address_step;
  if (chosen % function_address_step != 0 || index >= routines.size() || routines[index]->is_kernel)
    return warp.raise(FaultKind::invalid_pc, instruction, leader, "call of an address that is no function");
  const Routine& callee = *routines[index];
  if (!callee.unsupported.empty()) return cannot_call(warp, instruction, leader, callee);
  if (callee.code.empty())
    return warp.raise(FaultKind::invalid_pc, instruction, leader, "call of an address that is no function");
  if (!matches(details.arguments, callee.parameters) || !matches(details.returns, callee.returns))
    return warp.raise(FaultKind::launch_failure, instruction, leader,
                      "call of " + callee.name + " with parameters of other sizes");
  if (others != 0) warp.diverge(others, &instruction, nullptr, &instruction + 1);
  return enter(warp, instruction, callee, details);
}

const Instruction* run_return(Warp& warp, const Instruction&, LaneMask) {
  const Routine& callee = *warp.frame->routine;
  uint32_t callee_base = warp.frame->local_base;
  const Instruction* next = warp.return_from_call();
  auto& details = *static_cast<const CallDetails*>(next[-1].details);
  for (size_t i = 0; i < details.returns.size(); ++i)
    copy_parameter(warp, warp.frame->local_base + details.returns[i].offset, callee_base + callee.returns[i].offset,
                   details.returns[i].bytes);
  return next;
}

// ---- functions of the system ---------------------------------------------------------------------------------------

/// A parameter of a call, as one lane passes it.
template <class T>
T argument(Warp& warp, const CallDetails& details, size_t index, int lane) {
  T value = {};
  std::byte bytes[sizeof(T)] = {};
  if (index < details.arguments.size()) {
    uint32_t from = warp.frame->local_base + details.arguments[index].offset;
    for (uint32_t i = 0; i < sizeof(T) && i < details.arguments[index].bytes; ++i)
      bytes[i] = warp.local[local_position(from + i, lane)];
  }
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
void give_back(Warp& warp, const CallDetails& details, int lane, T value) {
  if (details.returns.empty()) return;
  std::byte bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof value);
  uint32_t to = warp.frame->local_base + details.returns[0].offset;
  for (uint32_t i = 0; i < sizeof(T) && i < details.returns[0].bytes; ++i)
    warp.local[local_position(to + i, lane)] = bytes[i];
}

/// Reads a string of the program; false after raising a fault.
bool read_string(Warp& warp, const Instruction& at, int lane, uint64_t address, std::string& text) {
  constexpr size_t string_bytes_max = size_t{1} << 20;
  text.clear();
  for (char c; text.size() < string_bytes_max; text.push_back(c)) {
    if (!read_generic(warp, at, lane, address + text.size(), &c, 1)) return false;
    if (c == '\0') break;
  }
  return true;
}

/// vprintf(format, arguments): the arguments lie in memory as a struct would have them.
const Instruction* run_print(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  auto& details = *static_cast<const CallDetails*>(instruction.details);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    std::string format;
    if (!read_string(warp, instruction, lane, argument<uint64_t>(warp, details, 0, lane), format)) return nullptr;
    PrintArguments source(warp, instruction, lane, argument<uint64_t>(warp, details, 1, lane));
    std::string text;
    int count = format_print(format, source, text);
    if (source.has_failed()) return nullptr;
    warp.launch->services->print(text);
    give_back<int32_t>(warp, details, lane, count);
  }
  return &instruction + 1;
}

/// __assertfail(expression, file, line, function, size of a character).
const Instruction* run_assert_fail(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  auto& details = *static_cast<const CallDetails*>(instruction.details);
  int lane = first_lane(lanes);
  std::string expression, file, function;
  if (!read_string(warp, instruction, lane, argument<uint64_t>(warp, details, 0, lane), expression) ||
      !read_string(warp, instruction, lane, argument<uint64_t>(warp, details, 1, lane), file) ||
      !read_string(warp, instruction, lane, argument<uint64_t>(warp, details, 3, lane), function))
    return nullptr;
  ThreadDimensions block = warp.block->index();
  for_each_lane(lanes, [&](int failed) {
    ThreadDimensions thread = Block::thread_index(*warp.launch, warp.index * warp_size + failed);
    char where[160];
    std::snprintf(where, sizeof where, "block: [%u,%u,%u], thread: [%u,%u,%u]", block.x, block.y, block.z, thread.x,
                  thread.y, thread.z);
    warp.launch->services->report_assertion(file + ":" + std::to_string(argument<uint32_t>(warp, details, 2, lane)) +
                                            ": " + function + ": " + where + " Assertion `" + expression +
                                            "` failed.\n");
  });
  return warp.raise(FaultKind::assertion, instruction, lane, "assertion failed");
}

const Instruction* run_allocate(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  auto& details = *static_cast<const CallDetails*>(instruction.details);
  for_each_lane(lanes, [&](int lane) {
    uint64_t bytes = argument<uint64_t>(warp, details, 0, lane);
    give_back<uint64_t>(warp, details, lane, warp.launch->services->allocate(bytes));
  });
  return &instruction + 1;
}

const Instruction* run_release(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  auto& details = *static_cast<const CallDetails*>(instruction.details);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    uint64_t address = argument<uint64_t>(warp, details, 0, lane);
    if (address != 0 && !warp.launch->services->release(address))
      return warp.raise(FaultKind::illegal_address, instruction, lane, "free of an address that malloc did not give");
  }
  return &instruction + 1;
}

/// cudaGraphSetConditional(handle, value).
const Instruction* run_set_condition(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  auto& details = *static_cast<const CallDetails*>(instruction.details);
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    int lane = first_lane(rest);
    if (!warp.launch->services->set_condition(argument<uint64_t>(warp, details, 0, lane),
                                              argument<uint32_t>(warp, details, 1, lane)))
      return warp.raise(FaultKind::illegal_address, instruction, lane, "condition that its context does not have");
  }
  return &instruction + 1;
}

// ---- barriers and clusters -----------------------------------------------------------------------------------------

const Instruction* run_barrier(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  auto kind = static_cast<BarrierKind>(instruction.immediate & 0xff);
  int leader = first_lane(lanes);
  uint32_t id = warp.lanes<uint32_t>(instruction.operands[1])[leader];
  uint32_t expected = warp.lanes<uint32_t>(instruction.operands[2])[leader];
  if (id >= Block::barrier_count)
    return warp.raise(FaultKind::illegal_instruction, instruction, leader, "barrier number beyond 15");
  if (expected % warp_size != 0)
    return warp.raise(FaultKind::illegal_instruction, instruction, leader,
                      "barrier for a thread count that is no multiple of the warp size");
  LaneMask predicate = warp.predicate(instruction.operands[3]);
  bool is_complete = warp.block->arrive(warp, id, expected, predicate);
  if (kind == BarrierKind::arrive) return &instruction + 1;
  if (!is_complete) return warp.wait_at_barrier(instruction, id);
  if (kind == BarrierKind::reduce_popc) {
    uint32_t* result = warp.lanes<uint32_t>(instruction.operands[0]);
    uint32_t count = warp.block->reduction(kind);
    for_each_lane(lanes, [&](int lane) { result[lane] = count; });
  } else if (kind != BarrierKind::sync) {
    warp.set_predicate(instruction.operands[0], lanes, warp.block->reduction(kind) ? all_lanes : 0);
  }
  return &instruction + 1;
}

const Instruction* run_cluster_arrive(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  warp.arrived_at_cluster |= lanes;
  warp.block->cluster().settle_barrier();
  return &instruction + 1;
}

const Instruction* run_cluster_wait(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  // A phase that is over has taken its arrivals back.
  if ((warp.arrived_at_cluster & lanes) == 0) return &instruction + 1;
  return warp.wait_at_barrier(instruction, Block::cluster_barrier);
}

constexpr uint64_t cluster_offset_mask = (uint64_t{1} << cluster_rank_shift) - 1;

template <class T>
const Instruction* run_map_shared(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  T* result = warp.lanes<T>(instruction.operands[0]);
  const T* address = warp.lanes<T>(instruction.operands[1]);
  const uint32_t* rank = warp.lanes<uint32_t>(instruction.operands[2]);
  uint64_t base = instruction.flags & 1 ? window_base(Window::shared) : 0;
  for_each_lane(lanes, [&](int lane) {
    uint64_t offset = address[lane] & cluster_offset_mask;
    result[lane] = static_cast<T>(base | (uint64_t{rank[lane]} + 1) << cluster_rank_shift | offset);
  });
  return &instruction + 1;
}

template <class T>
const Instruction* run_shared_rank(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  uint32_t* result = warp.lanes<uint32_t>(instruction.operands[0]);
  const T* address = warp.lanes<T>(instruction.operands[1]);
  auto* block = reinterpret_cast<const BlockRegisters*>(warp.banks[static_cast<int>(Bank::block)]);
  for_each_lane(lanes, [&](int lane) {
    uint64_t code = (uint64_t{address[lane]} >> cluster_rank_shift) & 0xff;
    result[lane] = code != 0 ? static_cast<uint32_t>(code - 1) : block->cluster_ctarank.lane[lane];
  });
  return &instruction + 1;
}

// ---- time ----------------------------------------------------------------------------------------------------------

uint64_t global_timer_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

uint64_t clock_cycles() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  auto ns = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  return ns * clock_mhz / 1000;
}

template <class T, Counter counter>
const Instruction* run_read_counter(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  bool is_clock = counter == Counter::clock || counter == Counter::clock_high;
  bool is_high = counter == Counter::clock_high || counter == Counter::global_timer_high;
  uint64_t value = is_clock ? clock_cycles() : global_timer_ns();
  if (is_high) value >>= 32;
  T* result = warp.lanes<T>(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) { result[lane] = static_cast<T>(value); });
  // Loops that wait for time to pass should not keep others waiting.
  warp.note_spin();
  return &instruction + 1;
}

const Instruction* run_nanosleep(Warp& warp, const Instruction& instruction, LaneMask) {
  return warp.sleep(&instruction + 1);
}

template <class T>
Handler read_counter_of(Counter counter) {
  switch (counter) {
    case Counter::clock: return &run_read_counter<T, Counter::clock>;
    case Counter::clock_high: return &run_read_counter<T, Counter::clock_high>;
    case Counter::global_timer: return &run_read_counter<T, Counter::global_timer>;
    case Counter::global_timer_high: return &run_read_counter<T, Counter::global_timer_high>;
  }
  return nullptr;
}

}  // namespace

Handler branch() { return &run_branch; }
Handler meet() { return &run_meet; }
Handler exit() { return &run_exit; }
Handler trap() { return &run_trap; }
Handler breakpoint() { return &run_breakpoint; }
Handler branch_indexed() { return &run_branch_indexed; }
Handler call() { return &run_call; }
Handler call_indirect() { return &run_call_indirect; }
Handler return_from_call() { return &run_return; }

Handler call_system(SystemFunction function) {
  switch (function) {
    case SystemFunction::print: return &run_print;
    case SystemFunction::assert_fail: return &run_assert_fail;
    case SystemFunction::allocate: return &run_allocate;
    case SystemFunction::release: return &run_release;
    case SystemFunction::set_condition: return &run_set_condition;
  }
  return nullptr;
}

Handler barrier() { return &run_barrier; }
Handler cluster_arrive() { return &run_cluster_arrive; }
Handler cluster_wait() { return &run_cluster_wait; }
Handler map_shared(uint32_t bytes) {
  return bytes == 4 ? &run_map_shared<uint32_t> : bytes == 8 ? &run_map_shared<uint64_t> : nullptr;
}
Handler shared_rank(uint32_t bytes) {
  return bytes == 4 ? &run_shared_rank<uint32_t> : bytes == 8 ? &run_shared_rank<uint64_t> : nullptr;
}
Handler nanosleep() { return &run_nanosleep; }
Handler read_counter(Counter counter, uint32_t bytes) {
  if (bytes == 4) return read_counter_of<uint32_t>(counter);
  return bytes == 8 ? read_counter_of<uint64_t>(counter) : nullptr;
}

}  // namespace fargpu::softgpu::ops
