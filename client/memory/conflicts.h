#pragma once
// Words that the program and the GPU have both changed while each had its own copy: one of the changes is lost, which
// the program is told.

#include <cuda.h>

#include <cstdint>

namespace fargpu::client {

/// The word at this address was changed by both, in memory of a kind (for people) that begins at `base`; 0 bytes: which
/// is gone. Any thread.
void note_conflict(std::uint64_t address, const char* kind, std::uint64_t base, std::uint64_t bytes) noexcept;
/// What a call that waits returns in place of `result`: an error, which a line explains, if something was noted since
/// the last such call.
CUresult tell_conflict(const char* call, CUresult result) noexcept;
/// The program ends without another one.
void tell_conflict_at_exit() noexcept;

}  // namespace fargpu::client
