#pragma once

#include "exec/instruction.h"

// Asynchronous copies and mbarrier objects (PTX ISA 9.7.9.25 and 9.7.13.15). Copies are carried
// out at once, so waiting for them finds them done. All addresses are generic.

namespace fargpu::softgpu::ops {

/// cp.async. Operands: to, from, bytes to read; the rest up to `immediate` bytes becomes zero.
Handler copy_async();

/// cp.async.bulk. Operands: to, from, bytes, mbarrier. With flags 1 the copied bytes are
/// completed on the mbarrier.
Handler copy_bulk();

enum class BarrierObjectOp {
  init,           // operands: address, count
  invalidate,     // operands: address
  arrive,         // operands: state, address, count
  arrive_drop,    // operands: state, address, count
  arrive_expect,  // operands: state, address, expected bytes
  expect,         // operands: address, bytes
  complete,       // operands: address, bytes
  test,           // operands: predicate, address, state
  test_parity,    // operands: predicate, address, parity (u32)
  pending_count,  // operands: count, state
};
Handler barrier_object(BarrierObjectOp op);

}  // namespace fargpu::softgpu::ops
