#pragma once

#include <cstdint>
#include <vector>

#include "exec/instruction.h"
#include "exec/routine.h"

// Control flow and calls (PTX ISA 9.7.12), barriers (9.7.13), special registers that change.
// Places in the code are given relative to the instruction.

namespace fargpu::softgpu::ops {

/// In Instruction::flags of a branch, as a signed distance: lanes that part do not meet again.
inline constexpr int32_t no_join = INT32_MIN;

/// Immediate: distance to the target; flags: distance to where lanes that part meet.
Handler branch();
/// Stands first where lanes may meet that parted before.
Handler meet();
Handler exit();
Handler trap();
Handler breakpoint();

/// brx.idx. Operand: index; details: BranchTable; flags as for branch().
struct BranchTable {
  std::vector<int32_t> targets;
};
Handler branch_indexed();

/// What a call passes, as places in the caller's local memory.
struct CallDetails {
  const Routine* callee = nullptr;  // null if an operand holds its address
  std::vector<ParameterLayout> arguments;
  std::vector<ParameterLayout> returns;
};
/// Details: CallDetails.
Handler call();
/// Operand: the function's address; details: CallDetails. A meet() follows.
Handler call_indirect();
Handler return_from_call();

/// Functions that the device itself provides, called like others. Details: CallDetails.
enum class SystemFunction { print, assert_fail, allocate, release, set_condition };
Handler call_system(SystemFunction function);

/// Operands: result (or sink), barrier number, expected threads (or zero), predicate;
/// immediate: BarrierKind.
Handler barrier();
Handler cluster_arrive();
Handler cluster_wait();
/// mapa. Operands: result, address, rank; flags 1: the address is generic, else shared.
Handler map_shared(uint32_t bytes);
/// getctarank. Operands: result, address; flags as above.
Handler shared_rank(uint32_t bytes);

Handler nanosleep();
enum class Counter { clock, clock_high, global_timer, global_timer_high };
Handler read_counter(Counter counter, uint32_t bytes);
/// Cycles per microsecond that %clock counts, whatever the host's processor does.
inline constexpr uint64_t clock_mhz = 1980;

}  // namespace fargpu::softgpu::ops
