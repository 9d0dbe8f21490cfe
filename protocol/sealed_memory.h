#pragma once
// Memory that two processes map, and whose size neither can change: so that no access to it faults, whatever the other
// does.

#include <cstddef>

namespace fargpu {

/// Zeroed memory behind a descriptor, which the caller owns. Throws SystemError.
int make_sealed_memory(const char* name, std::size_t bytes);

/// Whether a descriptor that came from elsewhere is such memory, of at least this size.
bool is_sealed_memory(int descriptor, std::size_t bytes);

}  // namespace fargpu
