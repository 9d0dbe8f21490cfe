#pragma once

#include <cstdint>
#include <string>

namespace fargpu::softgpu {

/// Why a kernel was stopped.
enum class FaultKind : uint8_t {
  none,
  illegal_address,
  misaligned_address,
  illegal_instruction,  // brkpt without a debugger, a jump to no function
  invalid_address_space,
  invalid_pc,
  stack_overflow,
  trap,
  assertion,
  deadlock,
  launch_failure,
};

struct Fault {
  FaultKind kind = FaultKind::none;
  std::string message;  // for stderr: what happened, and which thread did it
  explicit operator bool() const { return kind != FaultKind::none; }
};

}  // namespace fargpu::softgpu
