#pragma once
// Calls that are not served.

#include <cuda.h>

#include "symbols.h"

namespace fargpu::client {

/// A call that fargpu does not serve: says so once, by name.
CUresult refuse(Symbol symbol) noexcept;

/// A call, or a use of one, that is not served, for a reason that is not the whole symbol's: says so once.
CUresult refuse_use(const char* what) noexcept;

/// As refuse_use, where an attribute of the device says that it is not served, and programs try it all the same: said
/// only at level debug.
CUresult refuse_denied(const char* what) noexcept;

}  // namespace fargpu::client
