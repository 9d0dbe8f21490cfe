#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fargpu::softgpu {

/// Copies of memory that the program named without saying how long it is. Reading behind its end
/// gives nothing instead of a crash.
std::optional<std::string> copy_program_memory(const void* address, uint64_t bytes);

/// Up to the first zero byte, which is not part of the result.
std::optional<std::string> copy_program_text(const void* address);

}  // namespace fargpu::softgpu
