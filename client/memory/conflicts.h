#pragma once
// Words that the program and the GPU have both changed while each had its own copy: one of the changes is lost, which
// the program is told.

#include <cuda.h>

#include <string>

namespace fargpu::client {

/// A word of `memory` (for people: what it is, and where) was changed by both. Any thread.
void note_conflict(const std::string& memory) noexcept;
/// What a call that waits returns in place of `result`: an error, which a line explains, if something was noted since
/// the last such call.
CUresult tell_conflict(const char* call, CUresult result) noexcept;
/// The program ends without another one.
void tell_conflict_at_exit() noexcept;

}  // namespace fargpu::client
