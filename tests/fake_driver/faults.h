#pragma once
// Making any call of the fake driver fail, whichever it is.

#include <cuda.h>

#include <cstddef>

namespace fargpu::fake {

/// The `nth` call from now on (the first is 1) returns this without doing anything; 0: none does. Counting begins anew.
void fail_call(std::size_t nth, CUresult result);
/// The name of the call that failed so; empty if none did.
const char* failed_call();
/// How many calls there were since then.
std::size_t calls_since();

}  // namespace fargpu::fake
