#pragma once

#include <cstdint>
#include <vector>

#include "program/control_flow.h"
#include "program/ir.h"

namespace fargpu::softgpu::program {

/// Where each virtual register lives in the frame.
struct RegisterAllocation {
  std::vector<uint32_t> offsets;  // per virtual register; none if it is never used
  uint32_t frame_bytes = 0;
  uint32_t live_bytes_max = 0;  // per lane, at the busiest place
};

/// Registers whose values are never needed at the same time share a place. Each lane follows a
/// path of its own through the program and writes only its own part of a register, so what holds
/// for one thread's path holds for all lanes, whichever of them run together. Only registers of
/// one width share: with different widths a lane's part would be several lanes' of the other.
RegisterAllocation allocate_registers(const IrFunction& function, const ControlFlow& flow);

}  // namespace fargpu::softgpu::program
